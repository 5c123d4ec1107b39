"""Examples of the functions behind the layers.

Text alone: framework/examples/__init__.py reads it.
"""

TABLE = """
# any shape; the result has the shape of the input
= celu
>>> F.celu(fw.tensor([-1.0, 2.0]))
tensor([-0.6321,  2.0000])
= elu
>>> F.elu(fw.tensor([-1.0, 2.0]))
tensor([-0.6321,  2.0000])
= gelu
>>> F.gelu(fw.tensor([-1.0, 2.0]))
tensor([-0.1587,  1.9545])
= hardsigmoid
>>> F.hardsigmoid(fw.tensor([-1.0, 4.0]))
tensor([0.3333, 1.0000])
= hardswish
>>> F.hardswish(fw.tensor([-1.0, 4.0]))
tensor([-0.3333,  4.0000])
= hardtanh
>>> F.hardtanh(fw.tensor([-2.0, 0.5]))
tensor([-1.0000,  0.5000])
= leaky_relu
>>> F.leaky_relu(fw.tensor([-1.0, 2.0]), 0.1)
tensor([-0.1000,  2.0000])
= log_softmax
>>> F.log_softmax(fw.tensor([0.0, 0.0]), dim=-1)
tensor([-0.6931, -0.6931])
= logsigmoid
>>> F.logsigmoid(fw.tensor([0.0, 2.0]))
tensor([-0.6931, -0.1269])
= mish
>>> F.mish(fw.tensor([-1.0, 2.0]))
tensor([-0.3034,  1.9440])
= prelu
>>> F.prelu(fw.tensor([-1.0, 2.0]), fw.tensor([0.25]))
tensor([-0.2500,  2.0000])
= relu
>>> F.relu(fw.tensor([-1.0, 2.0]))
tensor([0., 2.])
= relu6
>>> F.relu6(fw.tensor([-1.0, 7.0]))
tensor([0., 6.])
= selu
>>> F.selu(fw.tensor([-1.0, 2.0]))
tensor([-1.1113,  2.1014])
= sigmoid
>>> F.sigmoid(fw.tensor([0.0, 2.0]))
tensor([0.5000, 0.8808])
= silu
>>> F.silu(fw.tensor([-1.0, 2.0]))
tensor([-0.2689,  1.7616])
= softmax
>>> F.softmax(fw.tensor([0.0, 0.0]), dim=-1)
tensor([0.5000, 0.5000])
= softmin
>>> F.softmin(fw.tensor([0.0, 1.0]), dim=-1)
tensor([0.7311, 0.2689])
= softplus
>>> F.softplus(fw.tensor([0.0, 2.0]))
tensor([0.6931, 2.1269])
= softsign
>>> F.softsign(fw.tensor([-1.0, 3.0]))
tensor([-0.5000,  0.7500])
= tanh
>>> F.tanh(fw.tensor([0.0, 1.0]))
tensor([0.0000, 0.7616])
= tanhshrink
>>> F.tanhshrink(fw.tensor([0.0, 1.0]))
tensor([0.0000, 0.2384])
= dropout
>>> F.dropout(fw.ones(2), 0.5, training=False)
tensor([1., 1.])
= normalize
>>> F.normalize(fw.tensor([[3.0, 4.0]]))
tensor([[0.6000, 0.8000]])
# `dim` is halved
= glu
>>> F.glu(fw.ones(2, 6)).shape
framework.Size([2, 3])
# [batch, channels, length] to [batch, channels, fewer]
= adaptive_avg_pool1d
>>> F.adaptive_avg_pool1d(fw.tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2)
tensor([[[2., 6.]]])
= adaptive_max_pool1d
>>> F.adaptive_max_pool1d(fw.tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2)
tensor([[[3., 7.]]])
= avg_pool1d
>>> F.avg_pool1d(fw.tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2)
tensor([[[2., 6.]]])
= max_pool1d
>>> F.max_pool1d(fw.tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2)
tensor([[[3., 7.]]])
# [batch, channels, height, width] to [batch, channels, fewer, fewer]
= adaptive_avg_pool2d
>>> F.adaptive_avg_pool2d(fw.ones(1, 3, 8, 8), 1).shape
framework.Size([1, 3, 1, 1])
= adaptive_max_pool2d
>>> F.adaptive_max_pool2d(fw.ones(1, 3, 8, 8), 1).shape
framework.Size([1, 3, 1, 1])
= avg_pool2d
>>> F.avg_pool2d(fw.ones(1, 3, 8, 8), 2).shape
framework.Size([1, 3, 4, 4])
= max_pool2d
>>> F.max_pool2d(fw.ones(1, 3, 8, 8), 2).shape
framework.Size([1, 3, 4, 4])
# [batch, channels, height, width] to [batch, channels * window, windows]
= unfold
>>> F.unfold(fw.ones(1, 3, 4, 4), 2).shape
framework.Size([1, 12, 9])
# [batch, channels, ...]; the result has the shape of the input
= batch_norm
>>> F.batch_norm(fw.randn(4, 3), fw.zeros(3), fw.ones(3)).shape
framework.Size([4, 3])
= group_norm
>>> F.group_norm(fw.randn(4, 4, 8), 2).shape
framework.Size([4, 4, 8])
= instance_norm
>>> F.instance_norm(fw.randn(4, 3, 8)).shape
framework.Size([4, 3, 8])
# [..., *normalized_shape]; the result has the shape of the input
= layer_norm
>>> F.layer_norm(fw.tensor([[1.0, 2.0, 3.0]]), (3,))
tensor([[-1.2247,  0.0000,  1.2247]])
= rms_norm
>>> F.rms_norm(fw.tensor([[3.0, 4.0]]), (2,))
tensor([[0.8485, 1.1314]])
# input [batch, in, length], weight [out, in / groups, kernel]
= conv1d
>>> F.conv1d(fw.ones(1, 1, 4), fw.ones(1, 1, 2))
tensor([[[2., 2., 2.]]])
# input [batch, in, height, width], weight [out, in / groups, kernel, kernel]
= conv2d
>>> F.conv2d(fw.ones(1, 3, 8, 8), fw.ones(4, 3, 3, 3)).shape
framework.Size([1, 4, 6, 6])
# input [batch, in, depth, height, width], weight [out, in / groups, kernel, kernel, kernel]
= conv3d
>>> F.conv3d(fw.ones(1, 3, 4, 4, 4), fw.ones(4, 3, 2, 2, 2)).shape
framework.Size([1, 4, 3, 3, 3])
# input [batch, in, ...], weight [in, out / groups, ...]
= conv_transpose1d
>>> F.conv_transpose1d(fw.ones(1, 1, 3), fw.ones(1, 1, 2), stride=2)
tensor([[[1., 1., 1., 1., 1., 1.]]])
= conv_transpose2d
>>> F.conv_transpose2d(fw.ones(1, 3, 4, 4), fw.ones(3, 8, 2, 2), stride=2).shape
framework.Size([1, 8, 8, 8])
= conv_transpose3d
>>> F.conv_transpose3d(fw.ones(1, 3, 2, 2, 2), fw.ones(3, 8, 2, 2, 2), stride=2).shape
framework.Size([1, 8, 4, 4, 4])
# [..., in_features] to [..., out_features]; weight [out_features, in_features]
= linear
>>> F.linear(fw.ones(2, 4), fw.ones(3, 4), fw.zeros(3))
tensor([[4., 4., 4.],
        [4., 4., 4.]])
# [..., in1] and [..., in2] to [..., out]; weight [out, in1, in2]
= bilinear
>>> F.bilinear(fw.ones(2, 4), fw.ones(2, 5), fw.ones(3, 4, 5)).shape
framework.Size([2, 3])
# class numbers of any shape [...]; weight [classes, width]; the result is [..., width]
= embedding
>>> F.embedding(fw.tensor([0, 2]), fw.tensor([[1.0], [2.0], [3.0]]))
tensor([[1.],
        [3.]])
# class numbers of any shape [...]; the result is [..., num_classes]
= one_hot
>>> F.one_hot(fw.tensor([0, 2]), 3)
tensor([[1, 0, 0],
        [0, 0, 1]])
# pairs from the last dimension on say how much is added
= pad
>>> F.pad(fw.tensor([[1.0, 2.0]]), (1, 2))
tensor([[0., 1., 2., 0., 0.]])
# input and target of one shape; the result is a number, with reduction="none" of that shape
= binary_cross_entropy
>>> F.binary_cross_entropy(fw.tensor([0.5]), fw.tensor([1.0]))
tensor(0.6931)
= binary_cross_entropy_with_logits
>>> F.binary_cross_entropy_with_logits(fw.tensor([0.0]), fw.tensor([1.0]))
tensor(0.6931)
= huber_loss
>>> F.huber_loss(fw.tensor([0.0, 3.0]), fw.zeros(2))
tensor(1.2500)
= kl_div
>>> F.kl_div(fw.tensor([[0.5, 0.5]]).log(), fw.tensor([[0.5, 0.5]]), reduction="batchmean")
tensor(0.)
= l1_loss
>>> F.l1_loss(fw.tensor([1.0, 3.0]), fw.zeros(2))
tensor(2.)
= mse_loss
>>> F.mse_loss(fw.tensor([1.0, 3.0]), fw.zeros(2))
tensor(5.)
= smooth_l1_loss
>>> F.smooth_l1_loss(fw.tensor([0.0, 3.0]), fw.zeros(2))
tensor(1.2500)
# two shapes that broadcast; `dim` goes
= cosine_similarity
>>> F.cosine_similarity(fw.tensor([[1.0, 0.0]]), fw.tensor([[1.0, 1.0]]))
tensor([0.7071])
# input [batch, classes], target [batch] of class numbers; the result is a number
= cross_entropy
>>> F.cross_entropy(fw.tensor([[0.0, 0.0]]), fw.tensor([1]))
tensor(0.6931)
= nll_loss
>>> F.nll_loss(fw.tensor([[-0.7, -0.7]]), fw.tensor([1]))
tensor(0.7000)
# query [..., length, width], key and value [..., source, width]; the result is [..., length, width]
= scaled_dot_product_attention
>>> q = fw.ones(2, 4, 5, 8)
>>> F.scaled_dot_product_attention(q, q, q, is_causal=True).shape
framework.Size([2, 4, 5, 8])
# no tensors
= check_probability
>>> F.check_probability(0.5)
"""
