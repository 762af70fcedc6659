#!/usr/bin/env python3
"""Trains the demo model on one core, and writes it as the engine loads it.

    pdc/demo/train.py --out DIR [--steps N] [--seed S] [--stop-after N]

DIR gets checkpoint.pt every few minutes, from which the same command continues, and beside it demo.safetensors, demo.json (what the
tests compare with) and words.txt: whatever has been reached is usable. The same seed, steps and packages make the same model on the
same machine. The rate falls over the second half of the steps, so more steps may be asked for before that begins.
Needs Debian's python3-torch and, to be several times as fast, libopenblas0-pthread.
"""
import argparse
import collections
import hashlib
import json
import math
import os
import random
import time

os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

import torch  # noqa: E402  threads are set before
from torch.nn.functional import cross_entropy  # noqa: E402

import corpus  # noqa: E402
import network  # noqa: E402

TOKENS = 3072  # of a step
WINDOW, WINDOW_LAST = 256, 1024
CHAT_SHARE = 0.15  # of the windows
ROPE_BASE, ROPE_BASE_LAST = 1e4, 1.2e5  # slower turns: long windows then look like the short ones did, and are learned in few steps
WARM_UP, DECAY_PART, LAST_PART = 50, 0.5, 0.2
MUON_RATE, ADAM_RATE = 0.02, 0.003
MTP_WEIGHT, BALANCE_WEIGHT = 0.3, 0.01
CHECKPOINT_SECONDS = 180
PROMPTS = ('The command prints', 'If the file does not exist, ', 'This program is free software', 'The function returns')
VALIDATION_TEXTS = 12
WORD_COUNT_MIN = 3


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal, for matrices and stacks of them: https://kellerjordan.github.io/posts/muon/."""

    def __init__(self, parameters):
        super().__init__(parameters, {'lr': MUON_RATE, 'momentum': 0.95, 'decay': 0.01})

    @staticmethod
    def orthogonal(x):
        tall = x.shape[-2] > x.shape[-1]
        x = (x.transpose(-1, -2) if tall else x).bfloat16()
        x = x / (x.float().norm(dim=(-2, -1), keepdim=True).bfloat16() + 1e-7)
        for _ in range(5):
            square = x @ x.transpose(-1, -2)
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return (x.transpose(-1, -2) if tall else x).float()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group['params']:
                average = self.state[one].setdefault('average', torch.zeros_like(one))
                average.lerp_(one.grad, 1 - group['momentum'])
                change = self.orthogonal(one.grad.lerp(average, group['momentum']))
                one.mul_(1 - group['lr'] * group['decay'])
                one.add_(change, alpha=-group['lr'] * max(1, one.shape[-2] / one.shape[-1]) ** 0.5)


def optimizers_of(net):
    matrices = [one for name, one in net.named_parameters() if one.dim() > 1 and not name.endswith(('embed_tokens', 'lm_head', '.gate'))]
    chosen = {id(one) for one in matrices}
    others = [one for one in net.parameters() if id(one) not in chosen]
    return Muon(matrices), torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)


def rate_at(step, steps):
    """The part of the full rate: up, level, down to 0."""
    return min(1.0, (step + 1) / WARM_UP, (steps - step) / (steps * DECAY_PART))


def batch_at(texts, seed, step, length):
    """The windows of a step: a function of seed and step. Each begins where a paragraph or a conversation does."""
    chance = random.Random(f'{seed} {step}')
    rows = []
    while len(rows) < TOKENS // length:
        tokens, starts = texts.chat if chance.random() < CHAT_SHARE else texts.prose
        start = chance.choice(starts)
        lead = [] if tokens[start] == corpus.BEGIN else [corpus.BEGIN]
        row = lead + tokens[start:start + length - len(lead)]
        rows += [row] if len(row) == length else []
    return torch.tensor(rows)


def losses_of(logits, guesses, tokens):
    flat = lambda x: x.reshape(-1, x.shape[-1]).float()
    return (cross_entropy(flat(logits[:, :-1]), tokens[:, 1:].reshape(-1)),
            cross_entropy(flat(guesses[:, :-1]), tokens[:, 2:].reshape(-1)))


@torch.no_grad()
def validate(net, texts, windows=48):
    """Nats a byte of text never learned from, and the share of MTP guesses that the model itself would pick."""
    tokens, starts = texts.prose
    rows = [[corpus.BEGIN] + tokens[start:start + WINDOW - 1] for start in starts[::max(1, len(starts) // windows)]]
    rows = torch.tensor([row for row in rows if len(row) == WINDOW])
    logits, guesses = net(rows)
    right = guesses[:, :-1].argmax(-1) == logits[:, 1:-1].argmax(-1)
    return losses_of(logits, guesses, rows)[0].item(), right[:, 32:].float().mean().item()


@torch.no_grad()
def answer_of(net, prompt, tokens_max):
    tokens = list(prompt)
    while len(tokens) < len(prompt) + tokens_max and tokens[-1] not in (corpus.END, corpus.TURN_END):
        tokens.append(net(torch.tensor([tokens]))[0][0, -1].argmax().item())
    return bytes(one for one in tokens[len(prompt):] if one < 256).decode(errors='replace')


def export(net, folder, facts, texts, held_out):
    """The model file, and what its test compares: logits of prompts, guesses, unseen texts and the words of the text."""
    net = network.rounded(net)
    path = os.path.join(folder, 'demo.safetensors')
    network.save(net, path)
    with open(path, 'rb') as file:
        facts['sha256'] = hashlib.sha256(file.read()).hexdigest()
    facts['prompts'] = []
    for prompt in PROMPTS:
        tokens = torch.tensor([[corpus.BEGIN, *prompt.encode()]])
        with torch.no_grad():
            logits, guesses = net(tokens)
        facts['prompts'].append({'prompt': prompt, 'logits': [round(one, 5) for one in logits[0, -1].tolist()],
                                 'guess_after': tokens[0, -1].item(), 'guess': guesses[0, -1].argmax().item()})
    text, starts = held_out.prose
    paragraphs = [bytes(text[a:b - 1]).decode() for a, b in zip(starts, starts[1:]) if corpus.END not in text[a:b]]
    facts['validation_texts'] = [one for one in paragraphs if len(one) > 300][:VALIDATION_TEXTS]
    with open(os.path.join(folder, 'demo.json'), 'w', encoding='utf-8') as file:
        json.dump(facts, file, indent=1)
    counts = collections.Counter()
    for one in (texts.prose, texts.chat):
        counts.update(corpus.words_in(bytes(token if token < 256 else 32 for token in one[0]).decode()))
    with open(os.path.join(folder, 'words.txt'), 'w', encoding='utf-8') as file:
        file.writelines(word + '\n' for word in sorted(counts) if counts[word] >= WORD_COUNT_MIN)
    for prompt in PROMPTS[:2]:
        print(f'  {prompt}|{answer_of(net, [corpus.BEGIN, *prompt.encode()], 100)}', flush=True)
    chat = [corpus.BEGIN, corpus.USER, *b'What is mount?', corpus.TURN_END, corpus.ASSISTANT]
    print(f'  What is mount?|{answer_of(net, chat, 100)}', flush=True)


class Run:
    def __init__(self, options):
        torch.set_num_threads(1)
        torch.manual_seed(options.seed)
        self.options, self.step, self.seconds = options, 0, 0.0
        self.net = network.Network({**network.CONFIG, 'seed': options.seed})
        self.optimizers = optimizers_of(self.net)
        self.path = os.path.join(options.out, 'checkpoint.pt')
        if os.path.exists(self.path):
            saved = torch.load(self.path)
            self.step, self.seconds = saved['step'], saved['seconds']
            self.net.load_state_dict(saved['net'])
            for optimizer, state in zip(self.optimizers, saved['optimizers']):
                optimizer.load_state_dict(state)
        self.texts, self.held_out = (corpus.Corpus(options.seed, validation) for validation in (False, True))
        active = sum(one.numel() for one in self.net.parameters())
        print(f'{active} parameters, {len(self.texts.prose[0])} tokens of prose, {len(self.texts.chat[0])} of questions and answers, '
              f'{len(self.held_out.prose[0])} for validation; step {self.step}', flush=True)

    def learn(self):
        last_part = self.step >= self.options.steps * (1 - LAST_PART)
        self.net.c['rope_base'] = ROPE_BASE_LAST if last_part else ROPE_BASE
        length = WINDOW_LAST if last_part and self.step % 2 else WINDOW
        tokens = batch_at(self.texts, self.options.seed, self.step, length)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            loss, guess_loss = losses_of(*self.net(tokens), tokens)
        (loss + MTP_WEIGHT * guess_loss + BALANCE_WEIGHT * self.net.imbalance()).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimizer, full in zip(self.optimizers, (MUON_RATE, ADAM_RATE)):
            for group in optimizer.param_groups:
                group['lr'] = full * rate_at(self.step, self.options.steps)
            optimizer.step()
        self.net.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item(), guess_loss.item()

    def checkpoint(self, loss):
        nats, right = validate(self.net, self.held_out)
        facts = {'seed': self.options.seed, 'steps': self.step, 'tokens': self.step * TOKENS, 'hours': round(self.seconds / 3600, 2),
                 'training_loss': round(loss, 3), 'validation_loss': round(nats, 3), 'validation_perplexity': round(math.exp(nats), 2),
                 'guesses_right': round(right, 3), 'corpus_sha256': self.texts.digest()}
        print(json.dumps(facts), flush=True)
        state = {'step': self.step, 'seconds': self.seconds, 'net': self.net.state_dict(),
                 'optimizers': [one.state_dict() for one in self.optimizers]}
        torch.save(state, self.path + '.part')
        os.replace(self.path + '.part', self.path)
        export(self.net, self.options.out, facts, self.texts, self.held_out)

    def train(self):
        last = min(self.options.steps, self.options.stop_after or self.options.steps)
        loss, saved = None, time.monotonic()
        while self.step < last:
            began = time.monotonic()
            now, guess_loss = self.learn()
            loss = now if loss is None else 0.95 * loss + 0.05 * now
            self.seconds += time.monotonic() - began
            if self.step % 20 == 0:
                print(f'step {self.step} loss {loss:.3f} guess {guess_loss:.3f} hours {self.seconds / 3600:.2f}', flush=True)
            if time.monotonic() - saved > CHECKPOINT_SECONDS or self.step == last:
                self.checkpoint(loss)
                saved = time.monotonic()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--out', required=True, help='folder of checkpoint and results')
    parser.add_argument('--steps', type=int, default=1720)
    parser.add_argument('--stop-after', type=int, help='steps after which it ends; later calls continue')
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    Run(options).train()


if __name__ == '__main__':
    main()
