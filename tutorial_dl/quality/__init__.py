"""How good generated samples are, as the field measures it; arrays in, numbers out.

showers.py      of showers, as in the CaloChallenge; digits.py: of digits, by a classifier
separation.py   of two histograms; frechet.py: of the moments of features
two_sample_classifier.py    by a classifier that tries to tell generated from simulated
"""
