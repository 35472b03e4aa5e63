"""Electron showers in a sampling calorimeter: the published parametrisation, equation by equation.

Grindhammer and Peters, "The parameterized simulation of electromagnetic showers in homogeneous and
sampling calorimeters", hep-ex/0001020; first Grindhammer, Rudowicz, Peters, NIM A 290 (1990) 469.
Its numbers are also in Geant4 (GFlashSamplingShowerTuning.hh, GVFlashHomoShowerTuning.hh) and in
CMSSW (EMECALShowerParametrization.h). With
depth t in radiation lengths X0, distance r from the axis in Moliere radii R_M, and E in GeV:

    dE/dt = E b (b t)^(a-1) e^(-b t) / Gamma(a),    maximum at T = (a - 1) / b
    dE/dr ~ p 2 r Rc^2 / (r^2 + Rc^2)^2 + (1 - p) 2 r Rt^2 / (r^2 + Rt^2)^2    core and tail

T and a differ from shower to shower: ln T and ln a are normal and correlated. The functions below
are compiled; shower_kernel.py draws showers from them.
"""

from math import exp, log

from numba_kernels.jit.compile import compiled
from tutorial_dl.data.calorimeter import CHARGE, CRITICAL, FREQUENCY, RATIO, RESOLUTION


@compiled
def longitudinal(energy, medium):
    """<ln T>, <ln a>, sigma(ln T), sigma(ln a), correlation of a shower of `energy` GeV.

    hep-ex/0001020, appendix A.1: homogeneous media, and the corrections for sampling calorimeters.
    """
    charge, rate = medium[CHARGE], 1 / medium[FREQUENCY]
    y = log(energy / medium[CRITICAL])
    maximum = y - 0.812 - 0.55 * rate - 0.69 * (1 - medium[RATIO])
    shape = 0.81 + (0.458 + 2.26 / charge) * y - 0.476 * rate
    spread_t, spread_a = 1 / (-2.5 + 1.25 * y), 1 / (-0.82 + 0.79 * y)
    return log(maximum), log(shape), spread_t, spread_a, 0.784 - 0.023 * y


@compiled
def relative_depth(depth, maximum, shape, mean_a):
    """tau: the depth t in units of the shower's centre of gravity <t> = T a / (a - 1).

    tau = t / <t> * A / (A - 1) with A = e^<ln a>, so that a shower of mean shape has its maximum at
    tau = 1 (section 3.2 and appendix A.2; GFlashSamplingShowerParameterisation::ComputeTau).
    depth: t in X0; maximum, shape: T in X0 and a of this shower; mean_a: <ln a>.
    """
    mean_shape = exp(mean_a)
    return depth / maximum * (shape - 1) / shape * mean_shape / (mean_shape - 1)


@compiled
def radial(energy, tau, medium):
    """Rc, Rt (in R_M) and p of a shower of `energy` GeV at the depth tau (appendix A.2)."""
    charge, rate, more = medium[CHARGE], 1 / medium[FREQUENCY], 1 - medium[RATIO]
    log_energy = log(energy)
    core = 0.0251 + 0.00319 * log_energy + (0.1162 - 0.000381 * charge) * tau
    core += -0.0203 * more + 0.0397 * rate * exp(-tau)
    slope = 0.3585 + 0.0421 * log_energy  # (as in CMSSW; Geant4 has 0.0412)
    tail = (0.659 - 0.00309 * charge) * (exp(-2.59 * (tau - 0.645)) + exp(slope * (tau - 0.645)))
    tail += -0.14 * more - 0.495 * rate * exp(-tau)
    width = 1.313 - 0.0686 * log_energy
    place = (0.401 + 0.00187 * charge - tau) / width
    share = (2.632 - 0.00094 * charge) * exp(place - exp(place))
    share += more * (0.348 - 0.642 * rate * exp(-((tau - 1) ** 2)))
    return core, tail, min(max(share, 0.0), 1.0)


@compiled
def spots(energy, maximum, shape, medium):
    """Number of spots of a shower, and T and a of their own gamma profile (appendix A.3).

    The spots make up the fluctuations of the radial profile: each is a part of its layer's energy.
    """
    number = 10.3 / medium[RESOLUTION] * energy**0.959
    charge = medium[CHARGE]
    return number, maximum * (0.813 + 0.0019 * charge), shape * (0.844 + 0.0026 * charge)
