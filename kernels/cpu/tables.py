"""Constants of the elementary functions for float32 and float64: splits, bounds and polynomial coefficients.

The polynomials are minimax fits: Lawson's iteratively reweighted least squares on Chebyshev points in 220
bits, each point weighted by the share of the fitted term in the result; coefficients rounded to the type
one at a time from the lowest power, the others refitted (tests/kernels/cpu/minimax.py). Knows no code.
"""

from __future__ import annotations

from dataclasses import dataclass

Coefficients = tuple[float, ...]


@dataclass(frozen=True)
class Tables:
    """What differs between the types. Errors (float32, float64) are relative to the function's result."""

    # Bits after the point, the bits of 1.0 and of sqrt(1/2), and that.
    places: int
    one: int
    half_root: int
    root_half: float
    # 1.5 * 2**places: adding it rounds a smaller number to an integer, which then is in the sum's low bits.
    rounder: float
    smallest_normal: float
    # Below it x * x / 2 does not count beside x.
    negligible: float
    # Beyond these bounds exp is 0 or inf, expm1 is -1, tanh is 1.
    exp_bounds: tuple[float, float]
    expm1_low: float
    tanh_high: float
    # ln 2 = high + low; `high` has so few bits that its product with an exponent is exact. pi / 2 in pieces.
    ln2: tuple[float, float]
    half_pi: tuple[float, float, float]
    # Up to here n times the first piece of pi / 2 leaves an exact difference, and a fourth would not count.
    large_angle: float
    # Where the two forms of erf meet, and where it has become 1.
    erf_bounds: tuple[float, float]
    # exp(r) = 1 + r + r**2 P(r) on |r| < ln(2) / 2, to 2**-26.1 and 2**-55.6 of exp(r) - 1
    exp: Coefficients
    # 2**r = 1 + r P(r) on |r| < 1/2, to 2**-28.3 and 2**-57.7
    exp2: Coefficients
    # float32: log(1 + f) = f - f**2 / 2 + f**3 P(f) on sqrt(1/2) < 1 + f < sqrt(2), to 2**-27.3
    # float64: log((1 + s) / (1 - s)) = 2 s + s z P(z), z = s**2, on |s| < 0.1716, to 2**-58.4
    log: Coefficients
    # tanh(x) = x + x z P(z) / Q(z), z = x**2, on |x| < 0.625, to 2**-27.7 (with no Q) and 2**-60.6
    tanh: Coefficients
    tanh_divisor: Coefficients
    # sin(x) = x + x**3 P(x**2) on |x| < pi / 4, to 2**-28.0 and 2**-58.0
    sin: Coefficients
    # cos(x) = 1 - x**2 / 2 + x**4 P(x**2) on |x| < pi / 4, to 2**-33.1 and 2**-64.0
    cos: Coefficients
    # erf(x) = x + x P(x**2) below erf_bounds, to 2**-25.9 and 2**-55.9
    erf: Coefficients
    # log2(erfc(x)) = P(x) between erf_bounds, to 2**-29.2 and 2**-56.9 of erf
    erfc_log2: Coefficients


FLOAT32 = Tables(
    places=23,
    one=0x3F800000,
    half_root=0x3F3504F3,
    root_half=0.7071067690849304,
    rounder=12582912.0,
    smallest_normal=2.0**-126,
    negligible=2.0**-25,
    exp_bounds=(-104.0, 89.0),
    expm1_low=-18.0,
    tanh_high=10.0,
    ln2=(0.693145751953125, 1.428606765330187e-06),
    half_pi=(1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    large_angle=2.0**17,
    erf_bounds=(0.92, 3.95),
    exp=(
        0.5, 0.1666654497385025, 0.0416664183139801, 0.008366378955543041, 0.0013938816264271736,
    ),
    exp2=(
        0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.00961848720908165,
        0.0013390985550358891, 0.0001533476752229035,
    ),
    log=(
        0.33333316445350647, -0.25000810623168945, 0.20002299547195435, -0.16624581813812256,
        0.14181111752986908, -0.13128426671028137, 0.12881000339984894, -0.07858816534280777,
    ),
    tanh=(
        -0.3333328366279602, 0.133314847946167, -0.05374296382069588, 0.02064879611134529,
        -0.005715028382837772,
    ),
    tanh_divisor=(),
    sin=(
        -0.16666655242443085, 0.008332191035151482, -0.0001951861340785399,
    ),
    cos=(
        0.04166664555668831, -0.001388730015605688, 2.4430391931673512e-05,
    ),
    erf=(
        0.12837915122509003, -0.3761250376701355, 0.1128191202878952, -0.02676987089216709,
        0.004997697193175554, -0.0006012792000547051,
    ),
    erfc_log2=(
        -0.00030327431159093976, -1.6268025636672974, -0.9194150567054749, -0.1498011350631714,
        0.03199705481529236, -0.0043725245632231236, 0.00028081107302568853,
    ),
)  # fmt: skip

FLOAT64 = Tables(
    places=52,
    one=0x3FF0000000000000,
    half_root=0x3FE6A09E667F3BCD,
    root_half=0.7071067811865476,
    rounder=6755399441055744.0,
    smallest_normal=2.0**-1022,
    negligible=2.0**-54,
    exp_bounds=(-746.0, 710.0),
    expm1_low=-38.0,
    tanh_high=21.0,
    ln2=(6.93147180369123816490e-01, 1.90821492927058770002e-10),
    half_pi=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33),
    large_angle=2.0**30,
    erf_bounds=(1.0, 5.95),
    exp=(
        0.5000000000000006, 0.16666666666666682, 0.04166666666657369, 0.008333333333317174,
        0.0013888888932336546, 0.00019841269897095132, 2.480150451226643e-05, 2.755723343277029e-06,
        2.762629648397238e-07, 2.5112707005204912e-08,
    ),
    exp2=(
        0.6931471805599453, 0.24022650695910108, 0.05550410866482171, 0.009618129107601653,
        0.001333355814655204, 0.00015403530448936155, 1.5252733626934232e-05, 1.3215438896750321e-06,
        1.0178163330459887e-07, 7.073221461119904e-09, 4.4383434041108065e-10,
    ),
    log=(
        0.6666666666666734, 0.39999999999416186, 0.28571428742184524, 0.22222198587059724,
        0.18183563821518553, 0.1531405965353413, 0.14795886590289525,
    ),
    tanh=(
        -0.33333333333333326, -0.02049685406979908, -0.00019909191783682183,
    ),
    tanh_divisor=(
        1.0, 0.4614905622093826, 0.023288738732754704, 0.0002064415037280688,
    ),
    sin=(
        -0.16666666666666632, 0.008333333333322486, -0.00019841269829849417, 2.755731370234509e-06,
        -2.505075928974929e-08, 1.589684375533463e-10,
    ),
    cos=(
        0.0416666666666666, -0.001388888888887449, 2.480158728968368e-05, -2.7557314404734416e-07,
        2.0875729798285156e-09, -1.1359962082305292e-11,
    ),
    erf=(
        0.12837916709551256, -0.3761263890318337, 0.11283791670938835, -0.026866170642319512,
        0.005223977599993743, -0.0008548325650882825, 0.00012055285654269583, -1.4924567145830162e-05,
        1.644541975035456e-06, -1.6193758199951862e-07, 1.3658866681077826e-08, -7.685948659400247e-10,
    ),
    erfc_log2=(
        -7.425601484474217e-07, -1.6278995418691948, -0.9184833113479485, -0.14816783594955754,
        0.027393482404017466, 0.0005972640659611904, -0.00276914757946846, 0.0011158340149087327,
        -0.00019737137431545835, -2.79817387163176e-05, 3.2434586757728296e-05, -1.2353519682900964e-05,
        3.045410739595567e-06, -5.321377543488644e-07, 6.612817602207751e-08, -5.599101212212856e-09,
        2.907265203814187e-10, -6.998915164836687e-12,
    ),
)  # fmt: skip

LOG2_E = 1.4426950408889634
TWO_OVER_PI = 0.6366197723675814
# 2 / pi in 28-bit pieces, enough for the 2**128 of float32.
TWO_OVER_PI_PIECES = (
    0.6366197690367699, 3.3308114738561656e-09, 2.276010047810136e-18, 2.5268260189002822e-26,
    1.6682867657019525e-34, 1.158871328288855e-43, 7.053959174404295e-52,
)  # fmt: skip

# For pow. log2((1 + s) / (1 - s)) = s P(s**2) on |s| < 0.1716, to 2**-37.8
LOG2 = (2.8853900817901876, 0.9617966732971486, 0.5770835935847108, 0.41167218185566906, 0.34074011971286305)
# 2**r = 1 + r P(r) on |r| < 1/2, to 2**-28.9
EXP2_WIDE = (
    0.6931472029531068, 0.2402264797144031, 0.05550332342740837,
    0.009618428163961728, 0.0013398913734439088, 0.00015356349013607098,
)  # fmt: skip
# log((1 + s) / (1 - s)) = 2 s + s z (2/3 + z P(z)), z = s**2, |s| < 0.1716, to 2**-66.3
LOG_TAIL = (
    0.4000000000000226, 0.28571428570097385, 0.2222222252019624, 0.1818178435233351,
    0.15386757684860747, 0.13256815109642164, 0.1319631667436128,
)  # fmt: skip
# 2/3 = first + second
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
