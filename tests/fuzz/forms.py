# ruff: noqa: E501 -- a form is one line, whatever its length
"""What the steps of a program may look like: templates of expressions and statements.

`{a}` and `{b}` stand for tensors, `{d}` for a dimension of `a`, `{i}` for an int64 vector, `{m}` for a bool tensor
and `{c}` for a small number. Values stay small: what is not bounded by its inputs' bound is scaled or squashed.
"""

from __future__ import annotations

UNARY = """
{a}.tanh()|-{a}|{a}.relu()|{a} * 0.5|{a}.sigmoid()|{a}.abs()|{a}.sin()|{a}.cos()|{a} * 1.0|{a} + 0|{a} / 1|1 - {a}.tanh()
{a}.square() * 0.25|{a}.clamp(-1.0, 1.0)|{a}.clamp(max=2).exp() * 0.5|({a}.abs() + 0.5).sqrt()|({a}.abs() + 0.5).log()
1 / ({a}.abs() + 0.5)|F.gelu({a})|F.silu({a})|F.softplus({a}) * 0.5|{a}.erf()|{a}.tanh() ** 2|{a}.tanh() ** {c}
({a}.abs() + 0.5) ** -0.5|{a}.floor()|{a}.round()|{a}.sign()|F.leaky_relu({a}, 0.1)|F.elu({a})|{a} * s|({a} + s).tanh()
({a} + k).clamp(-3, 3)|{a} * state.scale|{a} * SCALE|{a} * factor|{a} * TABLE["k"]|{a} * state.table["k"]|helper({a})
helper({a}, by=0.25)|state.method({a})|({a} * state.doubled).tanh()|({a} + state.count).tanh()|({a} + len(state.log)).tanh()
({a} * state.repeat).tanh()|({a} + {a}.shape[0]).tanh()|{a} * {a}.ndim * 0.25|{a} * (0.5 if state.mode == "a" else 0.25)
(lambda t: t * 0.5)({a})|{a} - {a}.detach() * 0.5|{a}.nan_to_num(0.0)|({a}.abs() + 1).log1p()|{a}.expm1().clamp(-2, 2)
{a}.expand_as({a})|{a}.to(fw.float32)|{a} // 2|{a} % 1.5|{a}.hypot({a}) * 0.5|{a}.trunc()
"""
BINARY = """
({a} + {b}) * 0.5|{a} * {b} * 0.25|({a} - {b}) * 0.5|({a} + {b}).tanh()|fw.maximum({a}, {b})|fw.minimum({a}, {b})
{a} / ({b}.abs() + 1.0)|fw.where({a} > {b}, {a}, {b} * 0.5)|({a} - {b}).abs() * 0.5|fw.add({a}, {b}, alpha=0.5) * 0.5
{a}.lerp({b}, 0.25)|fw.stack([{a}, {b}]).mean(0)|({a} * {b} + {a} * 0.5).tanh()|fw.addcmul({a}, {b}, {b}, value=0.25).tanh()
({b} - {a} * 2).sin()|fw.copysign({a}, {b})|fw.atan2({a}, {b}.abs() + 1)|({a} * {a} - {b} * {b}).clamp(-4, 4)
"""
COMPARE = """
{a} > 0.25|{a} <= {b}|{a} > {b}|{a} == {b}|({a} > 0) & ({b} < 1)|~({a} < 0.5)|{a}.isfinite()|({a} > 0).any({d})|({a} > -1).all({d})
({a} >= 0.0) != ({b} >= 0.0)|{a}.isnan().logical_or({b} > 0.5)|fw.logical_xor({a} > 0.1, {b} > 0.1)
"""
WHERE = """
fw.where({m}, {a}, {b})|{a}.masked_fill({m}, 0.5)|{a} * {m}|fw.where({m}, {a}, 0.0)|{m}.to({a}.dtype) * {a}|{a} * (~{m}).float()
fw.where({m}, 0.25, {a})|{a}.where({m}, {b})
"""
REDUCE = """
{a}.mean({d})|{a}.sum() * 0.1|{a}.sum({d}) * 0.25|{a}.amax({d})|{a}.max({d}).values|{a}.mean()|{a}.sum({d}, keepdim=True) * 0.25
{a}.logsumexp({d}) * 0.5|{a}.var({d}, correction=0) * 0.25|({a}.var({d}, correction=0) + 0.1).sqrt()|({a}.norm() + 0.1) * 0.1
{a}.tanh().prod({d})|{a}.amin({d})|{a}.max()|{a}.min({d}).values|({a} - {a}.mean({d}, keepdim=True)) * 0.5|{a}.square().mean()
{a}.std({d}, correction=0) * 0.5|({a} - {a}.amax({d}, keepdim=True)).exp()
{a}.topk(1, {d}).values|{a}.mean({d}, dtype=fw.float64)
"""
ROW = """
{a}.cumsum({d}) * 0.2|{a}.tanh().cumprod({d})|{a}.cummax({d}).values|{a}.cummin({d}).values|{a}.logcumsumexp({d}) * 0.25
{a}.softmax({d})|F.log_softmax({a}, {d}) * 0.25|F.layer_norm({a}, {a}.shape[-1:], eps=0.1)|state.norm({a})|state.batch({a})
F.softmax({a} * 0.5, -1) * {a}|{a} / ({a}.abs().sum({d}, keepdim=True) + 1)|({a}.exp().clamp(max=9)).log1p() * 0.5|F.normalize({a} + 3) * 0.5
F.layer_norm({a}, {a}.shape[-1:], state.bias, state.buf, eps=0.1)|F.rms_norm({a}, {a}.shape[-1:], eps=0.1)
"""
VIEW = """
{a}[1:]|{a}.t()|{a}[0]|{a}.reshape(-1)|{a}[:, 1:3]|{a}[::2]|{a}[-1]|{a}.transpose(0, -1)|{a}[None]|{a}[..., 0]|{a}.unsqueeze(-1)
{a}[:, ::2]|{a}.squeeze()|{a}.detach()|{a}.unbind({d})[0]|{a}.chunk(2, {d})[-1]|{a}.split(1, {d})[0]|{a}.diagonal()
{a}[None].expand(2, *{a}.shape)|{a}.narrow({d}, 0, 1)|{a}.select({d}, -1)|{a}[:-1]|{a}.reshape(2, -1)|{a}[:, None]|{a}[..., ::2]
{a}[1:, 1:]|{a}.T[1:].T|{a}.reshape(-1)[1:3]|{a}[1:][0]|{a}.movedim(0, -1)|{a}.view(-1)|{a}.flatten()|{a}.data|{a}.unflatten(-1, (2, 2))
"""
UNPACK = """
p, q = {a}.chunk(2, {d})|p, q = {a}.split([1, {a}.shape[0] - 1])|p, *q = {a}.unbind(); q = fw.stack(q)|p, q = {a}.max({d})
p, q = {a}[0], {a}[1:]|p, q = {a}, {a}.detach()|p = q = {a} * 0.5|p, q = (lambda t: (t, t[0]))({a})
"""
COPY = """
{a}.clone()|{a}.flip({d})|fw.cat([{a}, {b}], {d})|fw.stack([{a}, {b}])|{a}.contiguous()|{a}.roll(1, {d})|{a}.repeat(2, 1)|{a}.tril()
F.pad({a}, (1, 0))|{a}.clone().detach()|fw.cat([{a}, {a}[:1]])|sum([{a}, {b}]) * 0.5|fw.stack([t * 0.5 for t in {a}.unbind()])
{a}.tile(2)|{a}[[0, -1]]|{a}[fw.arange({a}.shape[0])]|{a}.repeat_interleave(2, {d})|fw.zeros_like({a}) + {a}|fw.einsum("...i,...i->...i", {a}, {b})
"""
CAST = """
{a}.double()|{a}.float()|{a}.long() % 4|{a}.bool()|{a} * {b}.float() * 0.25|({a}.double() + {b}) * 0.5|{a}.to(fw.float64).float()|{a}.int() % 3
{a}.type_as({b})|({a} * 4).to(fw.int64).float() * 0.25|{a}.half().float()
"""
INTEGER = """
{i}.cumsum(0) % 4|{i}.cummax(0).indices % 4
({i} + 1) % 4|{i} * 2 % 3|{i} // 2|{i}.float() * 0.25|-{i} % 4|({i} > 1)|{i} + {m}.sum() % 3|{i}.max() % 4|{i}.sum() % 4
{i} * s|{m} & ~{m}|{m}.sum(-1)|{m}.float().mean()|{i}.clamp(1, 2)|{i} ** 2 % 5|{i}.bitwise_xor({i} // 2)|{m}.any()|{i} == {i}.flip(0)
{i}.eq(k)|fw.where({i} > 1, {i}, 0)|{a}.argmax({d})|{a}.argmin({d})|{a}.max({d}).indices|({i}.double() + {i}) * 0.25
F.one_hot({i}, 4)|{i} + s
"""
MATMUL = """
({a} @ {b}).tanh()|({a} @ state.w).tanh()|({a} @ {b}.t()) * 0.1|{a}.t() @ {a} * 0.1|({a} @ {a}.t()).tanh()|{a} @ state.buf * 0.25
fw.matmul({a}, state.history.t()) * 0.1|fw.outer({a}.flatten()[:4], state.bias) * 0.25|fw.addmm(state.bias, {a}, state.w) * 0.25
({a}[None] @ state.w)[0] * 0.25|fw.einsum("ij,jk->ik", {a}, state.w) * 0.25|({a} @ state.w @ state.w.t()).tanh()|fw.dot({a}.flatten(), {a}.flatten()) * 0.05
"""
LINEAR = """
state.model({a}).tanh()|F.linear({a}, state.w, state.bias).tanh()|state.model[0]({a}) * 0.5|state.dropout({a}) * 0.5|F.relu(state.model[3]({a}))
F.linear({a}, state.w) * 0.25|state.norm(state.model({a}))|state.method(state.model[0]({a}))
"""
INDEX = """
state.embedding({i})|{a}[{i} % {a}.shape[0]]|{a}.index_select(0, {i} % {a}.shape[0])|{a}.gather(-1, {i}[:, None] % {a}.shape[-1])|state.w[{i}]
F.embedding({i}, state.history.repeat(2, 1))|{a}.take_along_dim({i}[:, None] % {a}.shape[1], 1)|{a}[k]|{a}[:, {i} % {a}.shape[1]]|{a}[0, {i} % {a}.shape[1]]
{a}[fw.arange({i}.shape[0]) % {a}.shape[0], {i} % {a}.shape[1]]|{a}[{i}[0] % {a}.shape[0]]|state.embedding({i}).mean(0)|state.w[{i}, {i}]
"""
SCATTER = """
fw.zeros(4).index_add(0, {i}, {a}[:, 0])|fw.zeros(4, 4).index_add(0, {i}, {a}) * 0.5|fw.zeros_like({a}).scatter(-1, {i}[:, None] % {a}.shape[-1], 0.5)
fw.zeros_like({a}).scatter_add(-1, {i}[:, None] % {a}.shape[-1], {a}) * 0.5|{a}.index_fill(0, {i} % {a}.shape[0], 0.5)|{a}.index_copy(0, {i}[:1] % {a}.shape[0], {a}[:1] * 0.5)
{a}.select_scatter({a}[0] * 0.5, 0, -1)|{a}.index_put(({i}[:1] % {a}.shape[0],), fw.tensor(0.5))
"""
LOSS = """
F.mse_loss({a}, {b}) * 0.25|F.cross_entropy({a}, {i} % {a}.shape[-1]) * 0.5|F.l1_loss({a}, {b}) * 0.5|F.nll_loss(F.log_softmax({a}, -1), {i} % {a}.shape[-1]) * 0.5
F.binary_cross_entropy_with_logits({a}, {m}.float()) * 0.5|F.cross_entropy({a}, {i} % {a}.shape[-1], reduction="none") * 0.25|F.smooth_l1_loss({a}, {b})
F.cross_entropy(state.model({a}), {i}, label_smoothing=0.1) * 0.5|F.huber_loss({a}, {b}) * 0.5|F.kl_div(F.log_softmax({a}, -1), {b}.softmax(-1), reduction="sum") * 0.1
"""
MAKE = """
fw.full((3, 4), 0.5)|fw.zeros(4)|fw.ones_like({a}) * 0.5|fw.arange(4) * 0.25|fw.tensor([0.5, -0.5, 1.0, 0.25])|fw.eye(4)|fw.linspace(-1, 1, 4)|fw.full((), s)
fw.ones(2, 4, dtype=fw.float64)|fw.tensor(0.5)|{a}.new_zeros(4)|fw.tensor([0, 2, 1, 3])|fw.full_like({a}, 0.25)|fw.arange({a}.shape[0])|fw.tensor([True, False, True, True])
fw.ones(4, 4).tril() * 0.25
"""
WRITE = """
{a}.mul_(0.5)|{a}.copy_({b})|{a}.add_({b}).clamp_(-4, 4)|{a}.zero_()|{a}.fill_(0.5)|{a}.tanh_()|{a}.clamp_(-1, 1)|{a}.sub_(0.25).tanh_()|{a}.neg_()
{a}.mul_({b}).clamp_(-4, 4)|{a}.masked_fill_({a} > 1, 0.5)|{a}.lerp_({b}, 0.5)|{a}.copy_({b}.detach())|{a}.add_({a}).clamp_(-4, 4)|{a}.addcmul_({b}, {b}, value=0.1).clamp_(-4, 4)
{a}.masked_fill_({m}, 0.25)|{a}.index_fill_(0, {i} % {a}.shape[0], 0.5)|{a}.div_(2)|{a}.relu_()|{a}.abs_()|{a}.scatter_(-1, {i}[:, None] % {a}.shape[-1], 0.5)|{a}.index_add_(0, {i}[:1] % {a}.shape[0], {a}[:1] * 0.5)
"""
VIEW_WRITE = """
{a}[1:].mul_(0.5)|{a}[0].copy_({b})|{a}[:, 1].fill_(0.25)|{a}[::2].add_(0.25).clamp_(-4, 4)|{a}.t()[1:].mul_(0.5)|{a}.reshape(-1)[1:3].fill_(0.5)|{a}.detach()[0].zero_()
{a}[1:].copy_({a}[:-1].clone())|{a}[..., ::2].neg_()|{a}.unbind()[0].mul_(0.5)|{a}.transpose(0, -1)[0].tanh_()|{a}[-1].sub_({b}).clamp_(-4, 4)|{a}.chunk(2, {d})[-1].zero_()|{a}[1:].copy_({a}[:-1])
{a}.diagonal().fill_(0.5)|{a}.detach().mul_(0.5)|{a}.data.mul_(0.5)|{a}[1:, 1:].copy_({b}[1:, 1:])|{a}[None][0, 0].fill_(0.75)|{a}.squeeze().mul_(0.5)|{a}[1:][0].add_(0.25).clamp_(-4, 4)|{a}.select({d}, 0).copy_({b}.detach())
"""
STATE_WRITE = """
state.buf.mul_(0.5).add_({a}.detach().mean() * 0.5)|state.buf.copy_({a}.detach())|state.steps.add_(1)|state.history[1:].copy_(state.history[:-1].clone()); state.history[0].copy_({a}.detach())
state.row.fill_(0.5)|state.history.zero_()|state.buf.lerp_({a}.detach(), 0.25)|state.history[k].mul_(0.5)|state.history.t()[0].copy_({a}.detach())|state.row.copy_({a}.detach()); state.history[0].add_(state.row * 0.1).clamp_(-4, 4)
state.buf.add_({a}).clamp_(-4, 4)|state.w.detach().mul_(0.5)|state.w.data.mul_(0.75)|state.steps.copy_(state.steps.flip(0) + 1)
"""
PYTHON = """
{a} * max(0.25, min(0.5, s))|sum(t.sum() for t in ({a}, {b})) * 0.1|[{a} * 0.5, {b} * 0.5][k % 2]|{{"t": {a} * 0.5}}["t"]|({a} * 0.5 if k > 1 else {a} * 0.25)
({a} if isinstance({a}, fw.Tensor) else {b}) * 0.5|fw.stack([{a} * (0.1 * j) for j in range(3)]).sum(0) * 0.5|(helper if state.flag else state.method)({a})
{a} * (0.5 if fw.is_grad_enabled() else 0.25)|{a} * (0.5 if {a}.requires_grad else 0.25)|{a} * (0.5 if {a}.dtype == fw.float32 else 0.25)|{a} * (0.5 if state.model.training else 0.25)
{a} * (0.5 if state.w.grad is None else 0.25)|state.model.state_dict()["0.weight"] * 0.5|list(state.model.parameters())[0] * 0.5|{a} * state.opt.param_groups[0]["lr"]|{a} * (0.5 if {a}.is_contiguous() else 0.25)
state.kept[-1] * 0.5 if state.kept else {a} * 0.5|{a} * 0.5 if state.last is None else state.last * 0.5|{a} * State.offset|{a} * len(list(zip({a}, {a}))) * 0.1|{a} * (0.5 if y is x else 0.25)|{a} * sum(range(k)) * 0.25
"""
RANDOM = """
fw.rand(3, 4)|fw.rand_like({a})|F.dropout({a}, 0.5) * 0.5|state.dropout({a}) * 0.5|fw.randn(4).clamp(-2, 2)|fw.randint(0, 4, ({a}.shape[0],))|fw.bernoulli({a}.sigmoid())|F.dropout({a}, 0.25, state.flag) * 0.5
fw.randperm(4)|fw.rand({a}.shape[0]) > 0.5|{a} + fw.rand_like({a}) * 0.1|fw.rand(4, dtype=fw.float64)|fw.empty(4).uniform_(-1, 1)|fw.normal(0.0, 0.25, (4,)).clamp(-2, 2)
"""
LEAF = """
{a}.detach().clone().requires_grad_()|fw.full((4,), 0.5, requires_grad=True)|{a}.detach().requires_grad_()|fw.ones(3, 4).mul(0.5).requires_grad_()|fw.rand(4, requires_grad=True)
"""
BACKWARD = """
{a}.square().mean().backward()|({a} * state.bias).mean().backward()|{a}.sum().mul(0.1).backward(retain_graph=True)|{a}.mean().backward()|({a} @ state.w).tanh().mean().backward()
{a}.backward(fw.ones_like({a}) * 0.1)|state.model({a}).square().mean().backward()|({a} * 0.5).mean().backward(inputs=[state.bias])|F.cross_entropy(state.model({a}), {i}).backward()
(state.embedding({i}) * 0.5).square().mean().backward()|{a}.square().mean().backward(); state.w.grad = None
"""
GRADIENT = """
fw.autograd.grad({a}.square().mean(), [state.w], allow_unused=True, retain_graph=True)[0]|(state.bias.grad if state.bias.grad is not None else state.bias.detach()) * 0.5|fw.autograd.grad(({a} * state.bias).mean(), state.bias, retain_graph=True)[0] * 2
(state.w.grad if state.w.grad is not None else state.w.detach()) * 0.5|{a} * (0.5 if {a}.grad is None else {a}.grad.mean())|fw.autograd.grad(({a} * state.w[0]).tanh().mean(), state.w, create_graph=True)[0].square().mean()
state.w.grad if state.w.grad is not None else {a}|sum(p.grad.sum() for p in state.opt.param_groups[0]["params"] if p.grad is not None) * 0.1
"""
TRAIN = """
state.opt.zero_grad(); loss = F.cross_entropy(state.model({a}), {i}); loss.backward(); state.opt.step()
state.opt.zero_grad(); loss = F.mse_loss(state.model({a}), {a}.detach() * 0.5); loss.backward(); nn.utils.clip_grad_norm_(state.model.parameters(), 0.5); state.opt.step()
loss = (state.model({a}) * state.w[0]).tanh().mean(); loss.backward(); state.opt.step(); state.opt.zero_grad()
state.opt.zero_grad(set_to_none=False); loss = (state.embedding({i}) @ state.w).square().mean(); loss.backward(); state.opt.step()
"""
ZERO_GRAD = """
state.opt.zero_grad()|state.opt.zero_grad(set_to_none=False)|state.w.grad = None|state.model.zero_grad()|state.w.grad = {a}.detach().clone()|[p.grad.mul_(0.5) for p in (state.w, state.bias) if p.grad is not None]
"""
STEP = """
state.opt.step()|nn.utils.clip_grad_norm_([state.w, state.bias], 0.5)|nn.utils.clip_grad_value_([state.w], 0.1)|state.opt.step(); state.opt.zero_grad()
"""
MASK_READ = """
{a}.median()|{a}.sort({d}).values|{a}.topk(1, {d}).values|{a}.argsort(-1)|{i}.sort().values|fw.multinomial(fw.ones(4), 2)
{a}[{a} > 0].sum() * 0.1|{a}[{m}].mean().nan_to_num(0.0)|{a}.nonzero().sum() % 4|fw.masked_select({a}, {m}).sum() * 0.1|fw.unique({i}).sum() % 4|fw.tensor({a}.tolist()) * 0.5
"""
NUMBER = """
{a}.mean().item()|float({a}.max())|{a}.sum().item() * 0.1|float({a}.flatten()[0])|{i}.max().item() * 0.25|len({i}.unique()) * 0.25|float(({a} > 0).sum()) * 0.1|{a}.flatten()[-1].tolist()|int({i}[0]) * 0.5
"""
PRINT = """
print("mean", round({a}.mean().item(), 3))|print({a}.shape, {a}.dtype)|print(state.count, "calls")|print(f"{{{a}.sum().item():.3f}}")|print({i}.tolist())|print({i})|print("text")
"""
ASSIGN = """
{a}[0] = 0.5|{a}[1:] = {a}[:-1].clone()|{a}[:, 0] = {b}[:, 1].detach()|{a}[{m}] = 0.25|{a}[{i} % {a}.shape[0]] = 0.5|{a}[0] = {b}[0] * 0.5|{a}[..., ::2] *= 0.5|{a}[-1] += 0.125|{a}[1:, 1:] = 0.5|{a}[{i} % {a}.shape[0]] += 0.125
{a}[k % 2] = {b}[0]|{a}[:] = {b}|{a}.t()[0] = 0.25|{a}[{a} > 1.0] = 1.0|state.history[0] = {a}.detach()|state.buf[1:3] = 0.25|state.steps[k] += 1
"""
COUNT = """
state.count += 1|state.repeat = 3 - state.repeat + 1|state.scale *= 0.75|state.mode = "b" if state.mode == "a" else "a"|state.flag = not state.flag|setattr(state, "count", state.count + 2)|state.table["n"] = state.table.get("n", 0) + 1|State.offset = 0.5
"""
LOG = """
state.log.append(3)|state.log.append(len(state.log))|state.log.extend([1, 2])|NOTES.append(k)|state.log.append({a}.mean().item())|state.log.append(tuple({a}.shape))|state.log[:] = state.log[-2:]|state.log.append({a}.shape[0]); NOTES.append(state.log[-1])
"""
TABLE = """
state.table["k"] = 0.25|state.table.update(last=k)|TABLE["k"] *= 0.5|state.table["mean"] = {a}.mean().item()|state.table["t"] = {a}.detach() * 0.5|state.table.pop("last", None)|state.table["shape"] = list({a}.shape)|state.table.setdefault("first", s)
"""
STORE = """
state.last = {a}.detach()|state.kept.append({a}.detach() * 0.5); state.kept = state.kept[-2:]|state.last = {a}|state.buf = state.buf * 0.5|state.last = None|state.last = {a}[0].detach()|state.history = state.history * 0.5|state.kept[:] = [{a}.detach()]|state.last = {a} * 0.5
"""
DRAW = """
{a} * random.random()|{a} * random.choice([0.25, 0.5])|{a} * (random.randint(1, 3) * 0.25)
"""
TEXT = """
f"{{{a}.mean().item():.2f}}"|str({a}.shape)|str(k) + state.mode|repr({i}.tolist())|f"{{{i}}}"
"""


def _forms(name: str, text: str) -> tuple[str, ...]:
    """The forms of a table: one a line where they hold several statements, else between bars."""
    lines = text.strip().split("\n")
    return tuple(lines if name == "TRAIN" else "|".join(lines).split("|"))


FORMS = {
    name.lower(): _forms(name, text)
    for name, text in list(globals().items())
    if name.isupper() and isinstance(text, str)
}
