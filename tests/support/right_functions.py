"""Right answers to the exercises that ask for a function: as three learners would write them."""

import numpy as np

from tutorial_dl.strategies import Rule


def descent_by_formula(A, y, w, eta, steps):
    for _ in range(steps):
        w = w - eta * 2 / len(y) * A.T @ (A @ w - y)
    return w


def descent_in_place(A, y, w, eta, steps):
    while steps:
        w -= 2 * eta * (A.T @ (A @ w - y)) / A.shape[0]
        steps -= 1
    return w


def descent_in_loops(A, y, w, eta, steps):
    (s, k), w = A.shape, list(w)
    for _ in range(steps):
        off = [sum(A[n, j] * w[j] for j in range(k)) - y[n] for n in range(s)]
        w = [w[j] - eta * 2 / s * sum(off[n] * A[n, j] for n in range(s)) for j in range(k)]
    return tuple(w)


def descent_with_the_hessian(A, y, w, eta, steps):
    H, b = 2 / len(y) * A.T @ A, 2 / len(y) * A.T @ y
    for _ in range(steps):
        w = (np.eye(len(w)) - eta * H) @ w + eta * b
    return w


def backward_by_formula(x, y, W1, b1, W2, b2):
    z = x @ W1 + b1
    a = np.maximum(z, 0)
    delta_f = 2 / len(x) * (a @ W2 + b2 - y)
    delta_z = (delta_f @ W2.T) * (z > 0)
    return x.T @ delta_z, delta_z.sum(axis=0), a.T @ delta_f, delta_f.sum(axis=0)


def backward_with_where(x, y, W1, b1, W2, b2):
    a = np.clip(x.dot(W1) + b1, 0, None)
    error = 2 * (a.dot(W2) + b2 - y) / x.shape[0]
    back = np.where(a > 0, error * W2[:, 0], 0)
    ones = np.ones(len(x))
    return [x.T @ back, ones @ back, np.einsum("sn,so->no", a, error), error.sum(0)]


def backward_in_loops(x, y, W1, b1, W2, b2):
    (s, _), n = x.shape, len(b1)
    dW1, db1, dW2, db2 = (np.zeros_like(array) for array in (W1, b1, W2, b2))
    for k in range(s):
        a = [max(0.0, x[k, 0] * W1[0, i] + b1[i]) for i in range(n)]
        off = sum(a[i] * W2[i, 0] for i in range(n)) + b2[0] - y[k, 0]
        db2[0] += 2 * off / s
        for i in range(n):
            dW2[i, 0] += 2 * off * a[i] / s
            if a[i] > 0:
                db1[i] += 2 * off * W2[i, 0] / s
                dW1[0, i] += 2 * off * W2[i, 0] * x[k, 0] / s
    return dW1, db1, dW2, db2


def warm_by_formula(step, start, rate, steps):
    return rate if step >= steps else start + (rate - start) * step / steps


def warm_with_numpy(step, start, rate, steps):
    return np.interp(step, [0, steps], [start, rate]) if steps else rate


def warm_with_a_fraction(step, start, rate, steps):
    done = min(1.0, step / steps) if steps > 0 else 1.0
    return np.array((1 - done) * start + done * rate)


def warm_in_a_loop(step, start, rate, steps):
    if step >= steps:
        return rate
    now = start
    for _ in range(step):
        now += (rate - start) / steps
    return now


def combine_by_formula(counts, means, variances):
    weights = counts[:, None] / counts.sum()
    mean = (weights * means).sum(axis=0)
    return mean, (weights * (variances + (means - mean) ** 2)).sum(axis=0)


def combine_as_one_array(counts, means, variances):
    mean = np.average(means, axis=0, weights=counts)
    return np.stack([mean, np.average(variances + (means - mean) ** 2, axis=0, weights=counts)])


def combine_in_loops(counts, means, variances):
    s, p, C = counts.sum(), *means.shape
    mean = [sum(float(counts[i]) * float(means[i, c]) for i in range(p)) / s for c in range(C)]
    spread = [
        sum(counts[i] * (variances[i, c] + (float(means[i, c]) - mean[c]) ** 2) for i in range(p))
        / s
        for c in range(C)
    ]
    return [mean, spread]


def combine_in_float64(counts, means, variances):
    m, v = means.astype(np.float64), variances.astype(np.float64)
    mean = counts @ m / counts.sum()
    return mean, counts @ (v + (m - mean) ** 2) / counts.sum()


def answer_by_cases(workers, compute, serve):
    if workers <= 1 + compute / serve:
        return serve
    return workers * serve - compute


def answer_with_numpy(workers, compute, serve):
    return np.maximum(serve, workers * serve - compute)


def answer_by_simulation(workers, compute, serve):
    comes, free = [compute] * workers, 0.0
    for _ in range(200 * workers):
        worker = min(range(workers), key=comes.__getitem__)
        free = max(free, comes[worker]) + serve
        took = free - comes[worker]
        comes[worker] = free + compute
    return took


def delayed_in_a_list(eta, tau, x0, steps):
    x = [x0]
    for t in range(steps):
        x.append(x[t] - eta * x[max(0, t - tau)])
    return x


def delayed_in_an_array(eta, tau, x0, steps):
    x = np.full(tau + steps + 1, x0)
    for t in range(tau, tau + steps):
        x[t + 1] = x[t] - eta * x[t - tau]
    return x[tau:]


def delayed_in_a_dict(eta, tau, x0, steps):
    x = {t: x0 for t in range(-tau, 1)}
    for t in range(steps):
        x[t + 1] = x[t] - eta * x[t - tau]
    return tuple(x[t] for t in range(steps + 1))


def commit_by_formula(g, m, theta, s, eta, mu, kappa):
    D = -eta * g
    new = mu * m + D
    pi = np.clip((kappa * abs(new) - abs(theta - s)) / (abs(D) + 1e-12), 0, 5)
    return pi * D, new


def commit_with_where(g, m, theta, s, eta, mu, kappa):
    D = -eta * g
    m = mu * m + D
    left = kappa * np.abs(m) - np.abs(theta - s)
    there = D != 0
    pi = np.divide(left, np.abs(D), out=np.zeros_like(D), where=there)
    return [np.where(there, pi.clip(0, 5) * D, 0), m]


def commit_without_a_division(g, m, theta, s, eta, mu, kappa):
    """pi |D| is what is left, from 0 to 5 |D|."""
    D = -eta * g
    m = mu * m + D
    length = np.minimum(np.maximum(kappa * np.abs(m) - np.abs(theta - s), 0), 5 * np.abs(D))
    return np.array([length * np.sign(D), m])


def commit_in_a_loop(g, m, theta, s, eta, mu, kappa):
    moved, new = [], []
    for gi, mi, ti, si in zip(g, m, theta, s, strict=True):
        D = -eta * gi
        new.append(mu * mi + D)
        pi = (kappa * abs(new[-1]) - abs(ti - si)) / abs(D) if D else 0
        moved.append(min(max(pi, 0), 5) * D)
    return moved, new


def path_by_the_worker(roles, rank):
    own = roles[rank]
    passed = [rank]
    if own.device:
        passed += [r.rank for r in roles if r.worker == own.worker and r.device == 0]
    while roles[passed[-1]].master is not None:
        passed.append(roles[passed[-1]].master)
    return passed


def path_by_recursion(roles, rank):
    own = roles[rank]
    if own.role == "worker" and own.device > 0:
        first = next(r.rank for r in roles if r.worker == own.worker and r.device == 0)
        return (rank, *path_by_recursion(roles, first))
    return (rank,) if own.master is None else (rank, *path_by_recursion(roles, own.master))


def path_with_numpy(roles, rank):
    workers = np.array([-1 if r.worker is None else r.worker for r in roles])
    mates = np.flatnonzero(workers == roles[rank].worker)
    first = min(mates, key=lambda r: roles[r].device)
    passed = [rank] if rank == first else [rank, first]
    while (master := roles[passed[-1]].master) is not None:
        passed.append(master)
    return np.array(passed, dtype=float)


def add_by_formula(m, total, o, s, v):
    new = np.maximum(m, s.max(axis=1))
    old, e = np.exp(m - new), np.exp(s - new[:, None])
    return new, old * total + e.sum(axis=1), old[:, None] * o + e @ v


def add_with_an_old_key(m, total, o, s, v):
    """What has been computed so far is one more key, with the score m + ln total, the value o/l."""
    before = m + np.log(np.where(total, total, 1))
    mean = o / np.where(total, total, 1)[:, None]
    new = np.maximum(before, s.max(axis=1))
    a, e = np.exp(before - new), np.exp(s - new[:, None])
    return [new, a + e.sum(axis=1), a[:, None] * mean + e @ v]


def add_key_by_key(m, total, o, s, v):
    m, total, o = [float(x) for x in m], [float(x) for x in total], np.array(o)
    for i in range(len(s)):
        for j in range(len(v)):
            new = max(m[i], s[i, j])
            total[i] = total[i] * np.exp(m[i] - new) + np.exp(s[i, j] - new)
            o[i] = o[i] * np.exp(m[i] - new) + np.exp(s[i, j] - new) * v[j]
            m[i] = new
    return m, total, o.tolist()


def add_with_a_higher_m(m, total, o, s, v):
    """Any m that is large enough will do."""
    new = np.maximum(m, s.max(axis=1)) + 1.0
    total *= np.exp(m - new)
    o *= np.exp(m - new)[:, None]
    e = np.exp(s.T - new).T
    return new, total + e.sum(1), o + np.einsum("qk,kd->qd", e, v)


def ring_to_the_left(comm, x):
    p, r = comm.size, comm.rank
    chunks, incoming = np.array_split(x, p), np.zeros(-(-len(x) // p))
    for step in range(2 * p - 2):
        out, mine = chunks[(r + step) % p], chunks[(r + step + 1) % p]
        comm.Sendrecv(out, (r - 1) % p, recvbuf=incoming, source=(r + 1) % p)
        if step < p - 1:
            mine += incoming[: len(mine)]
        else:
            mine[:] = incoming[: len(mine)]


def ring_with_slices(comm, x):
    """With bounds in place of views, and mpi4py's positions and other names."""
    p, r = comm.Get_size(), comm.Get_rank()
    ends = [len(x) * k // p for k in range(p + 1)]
    for step in range(2 * (p - 1)):
        a, b = (r - step) % p, (r - step - 1) % p
        incoming = np.empty(ends[b + 1] - ends[b])
        comm.Sendrecv(x[ends[a] : ends[a + 1]].copy(), (r + 1) % p, 0, incoming, (r - 1) % p, 0)
        for i, value in enumerate(incoming):
            x[ends[b] + i] = value + (x[ends[b] + i] if step < p - 1 else 0)
    return x


class Springs(Rule):
    def step(self, x, g, server, due):
        if due:
            server.push(x, into=x)
        x -= self.rate * g

    def serve(self, center, sent, answer):
        d = 0.9 / self.workers * (sent - center)
        center += d
        answer[:] = sent - d


class SpringsThatSendTheForce(Springs):
    """The answer is d itself; the worker subtracts it."""

    def step(self, x, g, server, due):
        d = np.zeros_like(x)
        if due:
            server.push(x, into=d)
        x[:] = x - d - self.rate * g

    def serve(self, center, sent, answer):
        alpha = 0.9 / self.workers
        np.subtract(sent, center, out=answer)
        answer *= alpha
        center += answer


class SpringsInLoops(Springs):
    def serve(self, center, sent, answer):
        for i in range(len(center)):
            d = 0.9 * (sent[i] - center[i]) / self.workers
            center[i] = center[i] + d
            answer[i] = sent[i] - d


def one_round(x):
    """With X^T X for a high matrix: X p(X^T X)."""
    if x.shape[0] <= x.shape[1]:
        square = x @ x.T
        return (3.4445 * np.eye(len(x)) - 4.7750 * square + 2.0315 * square @ square) @ x
    square = x.T @ x
    return 3.4445 * x + x @ (2.0315 * square @ square - 4.7750 * square)


def common(w, ends, samples):
    return sum(n * x for n, x in zip(samples, ends, strict=True)) / sum(samples)
