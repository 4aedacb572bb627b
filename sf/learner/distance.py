"""The distance of the policy under training from the one that acted, over the shares of all learners."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sf.learner.dataset import Transitions
from sf.learner.losses import divergence, effective_sample_size
from sf.learner.peers import Peers
from sf.policy import Evaluation


@torch.no_grad()
def mean_divergence(evaluation: Evaluation, minibatch: Transitions, peers: Peers) -> Tensor:
    """Mean estimate of the KL divergence from the policy that acted, over the shares of all learners."""
    mean = divergence(evaluation.log_probs - minibatch.behavior_log_probs).mean()
    peers.mean_(mean, len(minibatch))
    return mean


@torch.no_grad()
def effective_share(evaluation: Evaluation, minibatch: Transitions, peers: Peers) -> float:
    """Effective sample size of the minibatch, over the shares of all learners, from 0 to 1."""
    log_ratios = (evaluation.log_probs - minibatch.behavior_log_probs).to(torch.float64)
    # A factor does not change it, and without this one a single ratio could overflow.
    shares = peers.gather(log_ratios.max().reshape(1) if len(log_ratios) else log_ratios.new_full((1,), -math.inf))
    ratios = (log_ratios - max(share.item() for (share,) in shares)).exp()
    sums = peers.sum(len(ratios), ratios.sum().item(), ratios.square().sum().item())
    return effective_sample_size(*sums)
