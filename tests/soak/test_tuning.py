"""A search of which a process is killed 20 times loses no trial, and counts none twice."""

import random


def test_twenty_kills(tests, tmp_path):
    draw = random.Random(0)
    victims = [(draw.randrange(5), draw.randrange(6)) for _ in range(20)]
    tests("test_tune_command").check_kills(tmp_path, victims, 12)
