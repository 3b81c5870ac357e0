"""What gated layers read of their projections: registered as `torch.ops.sgl_kernel.*`."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import operator


@operator("fused_sigmoid_mul_cpu(Tensor(a!) x, Tensor gate) -> ()")
def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    """Multiply x [n, D] by gates [n, D] that are opened."""
    x *= torch.sigmoid(gate.reshape(x.shape))


@operator(
    "fused_qk_gemma_rmsnorm_cpu(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, float eps, int head_dim)"
    " -> (Tensor, Tensor)"
)
def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Normalise each head of queries and keys [n, heads * D] by weights that are counted from 1."""
    return normed(q, q_weight, eps, head_dim), normed(k, k_weight, eps, head_dim)


@operator(
    "fused_qk_gemma_rmsnorm_with_gate_cpu(Tensor q_gate, Tensor k, Tensor q_weight, Tensor k_weight, float eps,"
    " int head_dim, int num_heads) -> (Tensor, Tensor, Tensor)"
)
def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same of queries that have a gate behind each head, which is returned as it is."""
    q, gate = q_gate.reshape(len(q_gate), num_heads, 2, head_dim).unbind(2)
    return (
        normed(q, q_weight, eps, head_dim),
        normed(k, k_weight, eps, head_dim),
        gate.reshape(-1, head_dim).contiguous(),
    )


@operator(
    "fused_qkvzba_split_reshape_cat_contiguous_cpu(Tensor qkvz, Tensor ba, int key_heads, int value_heads, int key_dim,"
    " int value_dim) -> (Tensor, Tensor, Tensor, Tensor)"
)
def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: Tensor, ba: Tensor, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Part what lies side by side: queries, keys and values [n, C], the gate of outputs [n, H, V], b and a [n, H]."""
    wide = value_heads * value_dim
    qkv, z = qkvz.split((2 * key_heads * key_dim + wide, wide), 1)
    b, a = ba.split(value_heads, 1)
    return qkv.clone(), z.reshape(-1, value_heads, value_dim).clone(), b.clone(), a.clone()


def normed(heads: Tensor, weight: Tensor, eps: float, head_dim: int) -> Tensor:
    """Return heads [n * heads, D] over their size, times weights [D] that are counted from 1."""
    rows = heads.reshape(-1, head_dim).float()
    sized = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return (sized * (1 + weight.float())).to(heads.dtype)
