"""Examples of layers and losses.

Text alone: framework/examples/__init__.py reads it.
"""

TABLE = """
# any shape; the result has the shape of the input
= ELU
>>> nn.ELU()(fw.tensor([-1.0, 2.0]))
tensor([-0.6321,  2.0000])
= GELU
>>> nn.GELU()(fw.tensor([-1.0, 2.0]))
tensor([-0.1587,  1.9545])
= SELU
>>> nn.SELU()(fw.tensor([-1.0, 2.0]))
tensor([-1.1113,  2.1014])
= Hardsigmoid
>>> nn.Hardsigmoid()(fw.tensor([-1.0, 4.0]))
tensor([0.3333, 1.0000])
= Hardswish
>>> nn.Hardswish()(fw.tensor([-1.0, 4.0]))
tensor([-0.3333,  4.0000])
= Hardtanh
>>> nn.Hardtanh()(fw.tensor([-2.0, 0.5]))
tensor([-1.0000,  0.5000])
= LeakyReLU
>>> nn.LeakyReLU(0.1)(fw.tensor([-1.0, 2.0]))
tensor([-0.1000,  2.0000])
= LogSigmoid
>>> nn.LogSigmoid()(fw.tensor([0.0, 2.0]))
tensor([-0.6931, -0.1269])
= LogSoftmax
>>> nn.LogSoftmax(dim=-1)(fw.tensor([0.0, 0.0]))
tensor([-0.6931, -0.6931])
= Mish
>>> nn.Mish()(fw.tensor([-1.0, 2.0]))
tensor([-0.3034,  1.9440])
= PReLU
>>> nn.PReLU()(fw.tensor([-1.0, 2.0])).detach()
tensor([-0.2500,  2.0000])
= ReLU
>>> nn.ReLU()(fw.tensor([-1.0, 2.0]))
tensor([0., 2.])
= ReLU6
>>> nn.ReLU6()(fw.tensor([-1.0, 7.0]))
tensor([0., 6.])
= SiLU
>>> nn.SiLU()(fw.tensor([-1.0, 2.0]))
tensor([-0.2689,  1.7616])
= Sigmoid
>>> nn.Sigmoid()(fw.tensor([0.0, 2.0]))
tensor([0.5000, 0.8808])
= Softmax
>>> nn.Softmax(dim=-1)(fw.tensor([0.0, 0.0]))
tensor([0.5000, 0.5000])
= Softmin
>>> nn.Softmin(dim=-1)(fw.tensor([0.0, 1.0]))
tensor([0.7311, 0.2689])
= Softplus
>>> nn.Softplus()(fw.tensor([0.0, 2.0]))
tensor([0.6931, 2.1269])
= Softsign
>>> nn.Softsign()(fw.tensor([-1.0, 3.0]))
tensor([-0.5000,  0.7500])
= Tanh
>>> nn.Tanh()(fw.tensor([0.0, 1.0]))
tensor([0.0000, 0.7616])
= Dropout
>>> nn.Dropout(0.5).eval()(fw.ones(2))
tensor([1., 1.])
= Identity
>>> nn.Identity()(fw.ones(2))
tensor([1., 1.])
# `dim` is halved
= GLU
>>> nn.GLU()(fw.ones(2, 6)).shape
framework.Size([2, 3])
# [batch, channels, length] to [batch, channels, fewer]
= AdaptiveAvgPool1d
>>> nn.AdaptiveAvgPool1d(2)(fw.ones(1, 3, 8)).shape
framework.Size([1, 3, 2])
= AdaptiveMaxPool1d
>>> nn.AdaptiveMaxPool1d(2)(fw.ones(1, 3, 8)).shape
framework.Size([1, 3, 2])
= AvgPool1d
>>> nn.AvgPool1d(2)(fw.ones(1, 3, 8)).shape
framework.Size([1, 3, 4])
= MaxPool1d
>>> nn.MaxPool1d(2)(fw.ones(1, 3, 8)).shape
framework.Size([1, 3, 4])
# [batch, channels, height, width] to [batch, channels, fewer, fewer]
= AdaptiveAvgPool2d
>>> nn.AdaptiveAvgPool2d(1)(fw.ones(1, 3, 8, 8)).shape
framework.Size([1, 3, 1, 1])
= AdaptiveMaxPool2d
>>> nn.AdaptiveMaxPool2d(1)(fw.ones(1, 3, 8, 8)).shape
framework.Size([1, 3, 1, 1])
= AvgPool2d
>>> nn.AvgPool2d(2)(fw.ones(1, 3, 8, 8)).shape
framework.Size([1, 3, 4, 4])
= MaxPool2d
>>> nn.MaxPool2d(2)(fw.ones(1, 3, 8, 8)).shape
framework.Size([1, 3, 4, 4])
# input and target of one shape; the result is a number, with reduction="none" of that shape
= BCELoss
>>> nn.BCELoss()(fw.tensor([0.5]), fw.tensor([1.0]))
tensor(0.6931)
= BCEWithLogitsLoss
>>> nn.BCEWithLogitsLoss()(fw.tensor([0.0]), fw.tensor([1.0]))
tensor(0.6931)
= HuberLoss
>>> nn.HuberLoss()(fw.tensor([0.0, 3.0]), fw.zeros(2))
tensor(1.2500)
= KLDivLoss
>>> nn.KLDivLoss(reduction="batchmean")(fw.tensor([[0.5, 0.5]]).log(), fw.tensor([[0.5, 0.5]]))
tensor(0.)
= L1Loss
>>> nn.L1Loss()(fw.tensor([1.0, 3.0]), fw.zeros(2))
tensor(2.)
= MSELoss
>>> nn.MSELoss()(fw.tensor([1.0, 3.0]), fw.zeros(2))
tensor(5.)
= SmoothL1Loss
>>> nn.SmoothL1Loss()(fw.tensor([0.0, 3.0]), fw.zeros(2))
tensor(1.2500)
# input [batch, classes], target [batch] of class numbers; the result is a number
= CrossEntropyLoss
>>> nn.CrossEntropyLoss()(fw.tensor([[0.0, 0.0]]), fw.tensor([1]))
tensor(0.6931)
= NLLLoss
>>> nn.NLLLoss()(fw.tensor([[-0.7, -0.7]]), fw.tensor([1]))
tensor(0.7000)
# [batch, channels] or [batch, channels, length]; the result has the shape of the input
= BatchNorm1d
>>> nn.BatchNorm1d(3)(fw.randn(4, 3)).shape
framework.Size([4, 3])
= InstanceNorm1d
>>> nn.InstanceNorm1d(3)(fw.randn(4, 3, 8)).shape
framework.Size([4, 3, 8])
# [batch, channels, height, width]; the result has the shape of the input
= BatchNorm2d
>>> nn.BatchNorm2d(3)(fw.randn(4, 3, 8, 8)).shape
framework.Size([4, 3, 8, 8])
= InstanceNorm2d
>>> nn.InstanceNorm2d(3)(fw.randn(4, 3, 8, 8)).shape
framework.Size([4, 3, 8, 8])
= GroupNorm
>>> nn.GroupNorm(2, 4)(fw.randn(4, 4, 8, 8)).shape
framework.Size([4, 4, 8, 8])
# [batch, channels, depth, height, width]; the result has the shape of the input
= BatchNorm3d
>>> nn.BatchNorm3d(3)(fw.randn(2, 3, 4, 4, 4)).shape
framework.Size([2, 3, 4, 4, 4])
= InstanceNorm3d
>>> nn.InstanceNorm3d(3)(fw.randn(2, 3, 4, 4, 4)).shape
framework.Size([2, 3, 4, 4, 4])
# [..., *normalized_shape]; the result has the shape of the input
= LayerNorm
>>> nn.LayerNorm(4)(fw.randn(2, 3, 4)).shape
framework.Size([2, 3, 4])
= RMSNorm
>>> nn.RMSNorm(4)(fw.randn(2, 3, 4)).shape
framework.Size([2, 3, 4])
# [batch, in_channels, length] to [batch, out_channels, length']
= Conv1d
>>> nn.Conv1d(3, 8, 3, padding=1)(fw.ones(2, 3, 16)).shape
framework.Size([2, 8, 16])
= ConvTranspose1d
>>> nn.ConvTranspose1d(3, 8, 2, stride=2)(fw.ones(2, 3, 16)).shape
framework.Size([2, 8, 32])
# [batch, in_channels, height, width] to [batch, out_channels, height', width']
= Conv2d
>>> nn.Conv2d(3, 8, 3, padding=1)(fw.ones(2, 3, 16, 16)).shape
framework.Size([2, 8, 16, 16])
= ConvTranspose2d
>>> nn.ConvTranspose2d(3, 8, 2, stride=2)(fw.ones(2, 3, 16, 16)).shape
framework.Size([2, 8, 32, 32])
# [batch, in_channels, depth, height, width] to [batch, out_channels, depth', height', width']
= Conv3d
>>> nn.Conv3d(3, 8, 3, padding=1)(fw.ones(1, 3, 4, 4, 4)).shape
framework.Size([1, 8, 4, 4, 4])
= ConvTranspose3d
>>> nn.ConvTranspose3d(3, 8, 2, stride=2)(fw.ones(1, 3, 4, 4, 4)).shape
framework.Size([1, 8, 8, 8, 8])
# class numbers of any shape [...]; the result is [..., embedding_dim]
= Embedding
>>> nn.Embedding(10, 4)(fw.tensor([[1, 2, 3]])).shape
framework.Size([1, 3, 4])
# [..., in_features] to [..., out_features]
= Linear
>>> nn.Linear(4, 3)(fw.ones(2, 4)).shape
framework.Size([2, 3])
# dimensions `start_dim` to `end_dim` become one, or one becomes several
= Flatten
>>> nn.Flatten()(fw.ones(2, 3, 4)).shape
framework.Size([2, 12])
= Unflatten
>>> nn.Unflatten(1, (2, 3))(fw.ones(4, 6)).shape
framework.Size([4, 2, 3])
# [time, batch, input_size] to [time, batch, hidden_size]; with batch_first the batch comes first
= RNN
>>> output, hidden = nn.RNN(4, 8)(fw.ones(5, 2, 4))
>>> output.shape, hidden.shape
(framework.Size([5, 2, 8]), framework.Size([1, 2, 8]))
= GRU
>>> output, hidden = nn.GRU(4, 8)(fw.ones(5, 2, 4))
>>> output.shape, hidden.shape
(framework.Size([5, 2, 8]), framework.Size([1, 2, 8]))
= LSTM
>>> output, (hidden, cell) = nn.LSTM(4, 8)(fw.ones(5, 2, 4))
>>> output.shape, cell.shape
(framework.Size([5, 2, 8]), framework.Size([1, 2, 8]))
= RNNBase
>>> isinstance(nn.LSTM(4, 8), nn.RNNBase)
True
# [batch, input_size] to [batch, hidden_size]
= RNNCell
>>> nn.RNNCell(4, 8)(fw.ones(2, 4)).shape
framework.Size([2, 8])
= GRUCell
>>> nn.GRUCell(4, 8)(fw.ones(2, 4)).shape
framework.Size([2, 8])
= LSTMCell
>>> hidden, cell = nn.LSTMCell(4, 8)(fw.ones(2, 4))
>>> hidden.shape
framework.Size([2, 8])
= RNNCellBase
>>> isinstance(nn.GRUCell(4, 8), nn.RNNCellBase)
True
# [time, batch, embed_dim], with batch_first [batch, time, embed_dim]; weights [batch, target, source]
= MultiheadAttention
>>> attend = nn.MultiheadAttention(8, 2, batch_first=True)
>>> x = fw.ones(3, 5, 8)
>>> output, weights = attend(x, x, x)
>>> output.shape, weights.shape
(framework.Size([3, 5, 8]), framework.Size([3, 5, 5]))
# [time, batch, d_model], with batch_first [batch, time, d_model]
= Transformer
>>> model = nn.Transformer(8, 2, 1, 1, 16)
>>> model(fw.ones(5, 3, 8), fw.ones(4, 3, 8)).shape
framework.Size([4, 3, 8])
= TransformerDecoder
>>> layer = nn.TransformerDecoderLayer(8, 2, 16)
>>> nn.TransformerDecoder(layer, 2)(fw.ones(4, 3, 8), fw.ones(5, 3, 8)).shape
framework.Size([4, 3, 8])
= TransformerDecoderLayer
>>> nn.TransformerDecoderLayer(8, 2, 16)(fw.ones(4, 3, 8), fw.ones(5, 3, 8)).shape
framework.Size([4, 3, 8])
= TransformerEncoder
>>> layer = nn.TransformerEncoderLayer(8, 2, 16)
>>> nn.TransformerEncoder(layer, 2)(fw.ones(5, 3, 8)).shape
framework.Size([5, 3, 8])
= TransformerEncoderLayer
>>> nn.TransformerEncoderLayer(8, 2, 16)(fw.ones(5, 3, 8)).shape
framework.Size([5, 3, 8])
# those of what it holds
= Module
>>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
>>> [name for name, p in model.named_parameters()]
['0.weight', '0.bias']
= ModuleDict
>>> layers = nn.ModuleDict({"a": nn.Linear(4, 3)})
>>> layers["a"](fw.ones(2, 4)).shape
framework.Size([2, 3])
= ModuleList
>>> layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
>>> len(layers)
3
= Parameter
>>> nn.Parameter(fw.ones(2))
Parameter containing:
tensor([1., 1.], requires_grad=True)
= ParameterList
>>> len(nn.ParameterList([nn.Parameter(fw.ones(2))]))
1
= Sequential
>>> nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))(fw.ones(3, 4)).shape
framework.Size([3, 2])
"""
