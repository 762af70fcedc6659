"""The transformer of pdc/engine in torch, to learn weights with: the same computation, in whole sequences.

Latent attention with absorbed keys computes what keys and values made from the latents give, so these are made here. Tests of the
demo model compare logits with the engine's.
"""
import json
import math

import torch
from torch import nn
from torch.nn.functional import linear, silu

CONFIG = {'name': 'demo', 'vocab': 264, 'layers': 6, 'hidden': 128, 'heads': 4, 'nope_dim': 32, 'rope_dim': 16, 'value_dim': 32,
          'latent_dim': 64, 'q_lora_dim': 0, 'dense_layers': 1, 'dense_dim': 384, 'experts': 8, 'experts_per_token': 2, 'shared_experts': 2,
          'expert_dim': 64, 'positions_max': 1024, 'routed_scale': 1.0, 'rope_base': 10000.0, 'norm_epsilon': 1e-6, 'router': 'sigmoid',
          'mtp': True, 'weights': 'bf16', 'seed': 1}


def weight(*shape, spread):
    return nn.Parameter(torch.empty(*shape).normal_(std=spread) if spread else torch.zeros(*shape))


def matrix(out, inside):
    return weight(out, inside, spread=1 / math.sqrt(inside))


class Norm(nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(size)), epsilon

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):
    """`caches`: makes keys and values of its own, rather than reading those of another layer."""

    def __init__(self, c, caches):
        super().__init__()
        self.c, inner = c, c['heads'] * c['value_dim']
        self.input_layernorm = Norm(c['hidden'], c['norm_epsilon'])
        self.q_proj = matrix(c['heads'] * (c['nope_dim'] + c['rope_dim']), c['hidden'])
        if caches:
            self.kv_a_proj_with_mqa = matrix(c['latent_dim'] + c['rope_dim'], c['hidden'])
            self.kv_a_layernorm = Norm(c['latent_dim'], c['norm_epsilon'])
        self.kv_b_proj = matrix(c['heads'] * (c['nope_dim'] + c['value_dim']), c['latent_dim'])
        self.o_proj = weight(c['hidden'], inner, spread=0)

    def rotated(self, x, first):
        """`x`: [..., positions, rope]; its halves are the coordinates of the rotations."""
        half = self.c['rope_dim'] // 2
        turns = self.c['rope_base'] ** (-2.0 * torch.arange(half, dtype=torch.float64) / self.c['rope_dim'])
        angle = torch.arange(first, first + x.shape[-2], dtype=torch.float64)[:, None] * turns
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def cache(self, x):
        """What a layer caches of [batch, positions, hidden]: latents and rotated keys."""
        latent, rope = linear(x, self.kv_a_proj_with_mqa).split((self.c['latent_dim'], self.c['rope_dim']), -1)
        return self.kv_a_layernorm(latent), self.rotated(rope, 0)

    def forward(self, x, cache, mask, first=0):
        """`x` [batch, rows, hidden] are the positions from `first` on; row i sees the first i + 1 entries of the cache."""
        c, (batch, rows, _) = self.c, x.shape
        latent, rope = cache[0][:, :rows], cache[1][:, :rows]
        q = linear(x, self.q_proj).view(batch, rows, c['heads'], -1).transpose(1, 2)
        nope, turned = q.split((c['nope_dim'], c['rope_dim']), -1)
        kv = linear(latent, self.kv_b_proj).view(batch, rows, c['heads'], -1).transpose(1, 2)
        key, value = kv.split((c['nope_dim'], c['value_dim']), -1)
        q = torch.cat((nope, self.rotated(turned, first)), -1) / math.sqrt(q.shape[-1])
        key = torch.cat((key, rope[:, None].expand(-1, c['heads'], -1, -1)), -1)
        scores = torch.matmul(q, key.transpose(-1, -2)) + mask[:rows, :rows]
        mixed = torch.matmul(scores.softmax(-1), value)
        return linear(mixed.transpose(1, 2).reshape(batch, rows, -1), self.o_proj)


class FeedForward(nn.Module):
    def __init__(self, hidden, inside):
        super().__init__()
        self.gate_proj, self.up_proj = matrix(inside, hidden), matrix(inside, hidden)
        self.down_proj = weight(hidden, inside, spread=0)

    def forward(self, x):
        return linear(silu(linear(x, self.gate_proj)) * linear(x, self.up_proj), self.down_proj)


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, hidden, inside = c, c['hidden'], c['expert_dim']
        self.gate = weight(c['experts'], hidden, spread=0.02)
        self.gate_up = weight(c['experts'], 2 * inside, hidden, spread=1 / math.sqrt(hidden))
        self.down = weight(c['experts'], hidden, inside, spread=0)
        self.shared_experts = FeedForward(hidden, c['shared_experts'] * inside)
        self.imbalance = 0.0

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        scores = linear(rows, self.gate).sigmoid()
        best, chosen = scores.topk(self.c['experts_per_token'])
        shares = best / (best.sum(-1, keepdim=True) + 1e-20) * self.c['routed_scale']
        out, used = self.shared_experts(rows), []
        for expert in range(self.c['experts']):
            row, rank = (chosen == expert).nonzero(as_tuple=True)
            used.append(len(row) / chosen.numel())
            gate, up = linear(rows[row], self.gate_up[expert]).chunk(2, -1)
            out = out.index_add(0, row, linear(silu(gate) * up, self.down[expert]) * shares[row, rank, None])
        likely = (scores / scores.sum(-1, keepdim=True)).mean(0)
        self.imbalance = (likely * torch.tensor(used)).sum() * self.c['experts']  # 1: all experts get as much
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, c, dense, caches=True):
        super().__init__()
        self.attention = Attention(c, caches)
        self.post_attention_layernorm = Norm(c['hidden'], c['norm_epsilon'])
        self.mlp = FeedForward(c['hidden'], c['dense_dim']) if dense else Experts(c)

    def forward(self, x, mask, cache=None, first=0):
        """The new states, and the cache that was read."""
        normed = self.attention.input_layernorm(x)
        cache = cache or self.attention.cache(normed)
        x = x + self.attention(normed, cache, mask, first)
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Network(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = weight(c['vocab'], c['hidden'], spread=0.5)
        self.layers = nn.ModuleList(Layer(c, layer < c['dense_layers']) for layer in range(c['layers']))
        self.norm = Norm(c['hidden'], c['norm_epsilon'])
        self.lm_head = weight(c['vocab'], c['hidden'], spread=0)
        self.enorm, self.hnorm = Norm(c['hidden'], c['norm_epsilon']), Norm(c['hidden'], c['norm_epsilon'])
        self.eh_proj = matrix(c['hidden'], 2 * c['hidden'])
        self.mtp = Layer(c, dense=True, caches=False)
        self.mtp_norm = Norm(c['hidden'], c['norm_epsilon'])

    def forward(self, tokens):
        """Of [batch, positions] tokens: logits of the token after each, and, but for the last, of the token after that."""
        mask = torch.full((tokens.shape[1],) * 2, -math.inf).triu(1)
        embedded = self.embed_tokens[tokens]
        x = embedded
        for layer in self.layers:
            x, cache = layer(x, mask)
        joined = torch.cat((self.enorm(embedded[:, 1:]), self.hnorm(x[:, :-1])), -1)
        # The engine guesses at the position of the newer token, and sees the last layer's cache below it.
        guessed, _ = self.mtp(linear(joined, self.eh_proj), mask, cache, first=1)
        return linear(self.norm(x), self.lm_head), linear(self.mtp_norm(guessed), self.lm_head)

    def imbalance(self):
        return sum(layer.mlp.imbalance for layer in self.layers if isinstance(layer.mlp, Experts))

    def tensors(self):
        """(name, tensor) as a model file has them: pdc/engine/tensor_plan.h."""
        for name, tensor in self.state_dict().items():
            name = name.replace('.attention.input_layernorm', '.input_layernorm').replace('.attention.', '.self_attn.')
            name = {'mtp_norm.weight': 'mtp.norm.weight'}.get(name, name)
            name = 'mtp.' + name if name.split('.')[0] in ('enorm', 'hnorm', 'eh_proj') else name
            name = name if name == 'lm_head' else 'model.' + name
            if name.endswith(('.gate_up', '.mlp.down')):
                head = name[:name.rindex('.')]
                for expert, one in enumerate(tensor):
                    parts = zip(('gate_proj', 'up_proj'), one.chunk(2)) if name.endswith('.gate_up') else [('down_proj', one)]
                    yield from ((f'{head}.experts.{expert}.{part}.weight', values) for part, values in parts)
            else:
                yield name if name.endswith('.weight') else name + '.weight', tensor


def rounded(network):
    """The network as a model file holds it: matrices in BF16."""
    copy = Network(network.c)
    copy.load_state_dict({name: tensor.bfloat16().float() if tensor.dim() > 1 else tensor
                          for name, tensor in network.state_dict().items()})
    return copy.eval()


def save(network, path):
    """A safetensors file: matrices BF16, norms F32."""
    header, parts, offset = {'__metadata__': {'format': 'pt', 'ems_config': json.dumps(network.c)}}, [], 0
    for name, tensor in network.tensors():
        wide = tensor.dim() == 1
        part = (tensor.contiguous() if wide else tensor.bfloat16().contiguous().view(torch.int16)).numpy().tobytes()
        header[name] = {'dtype': 'F32' if wide else 'BF16', 'shape': list(tensor.shape), 'data_offsets': [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(len(text).to_bytes(8, 'little') + text + b''.join(parts))
