"""The work that is timed: sizes, weights, inputs and least cost, the same for every framework.

NumPy only; knows no framework.
"""

from benchmarks.works.kernels import AdamW, BlackScholes, CrossEntropy, GeluChain, LayerNorm, Softmax
from benchmarks.works.training import Cnn, Gpt, Lstm, Mlp
from benchmarks.works.work import Work

WORKS: dict[str, Work] = {
    "mlp_small": Mlp((64, 64, 64, 10), 64),
    "mlp_mid": Mlp((784, 512, 512, 10), 128),
    "mlp_big": Mlp((1024, 2048, 2048, 2048, 10), 256),
    "cnn": Cnn(image=28, channels=(1, 32, 64), widths=(128, 10), batch=64),
    "gpt": Gpt(layers=4, width=128, heads=4, vocabulary=65, context=64, batch=12),
    "lstm": Lstm(width=128, times=32, batch=32),
    "softmax": Softmax(4096, 1024),
    "layer_norm": LayerNorm(4096, 1024),
    "cross_entropy": CrossEntropy(2048, 10_000),
    "gelu_chain": GeluChain(2**22),
    "black_scholes": BlackScholes(2**22),
    "adamw": AdamW(tensors=40, elements=250_000),
}
