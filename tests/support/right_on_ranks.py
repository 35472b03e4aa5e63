"""Right answers to the exercises of %%px cells, as three learners would write them."""

RIGHT = {
    "04.ring_sum": [
        # By the words of the text.
        """
def ring_sum(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total = np.array(x)
    last = x
    for step in range(comm.size - 1):
        coming = np.zeros(3)
        comm.Sendrecv(last, right, recvbuf=coming, source=left)
        total = total + coming
        last = coming
    return total
""",
        # With mpi4py's other names and positions.
        """
def ring_sum(comm, x):
    p, me = comm.Get_size(), comm.Get_rank()
    got = [x.copy()]
    while len(got) < p:
        buffer = np.empty(x.shape, x.dtype)
        comm.Sendrecv(got[-1], (me + 1) % p, 0, buffer, (me + p - 1) % p, 0)
        got.append(buffer)
    return list(np.sum(got, axis=0))
""",
        # Even ranks send first, odd ones receive first.
        """
def ring_sum(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size - 1):
        coming = np.empty_like(x)
        if comm.rank % 2 == 0:
            comm.Send(passing, dest=right)
            comm.Recv(coming, source=left)
        else:
            comm.Recv(coming, source=left)
            comm.Send(passing, dest=right)
        for i in range(len(x)):
            total[i] += coming[i]
        passing = coming
    return total
""",
    ],
    "05.reduce_scatter": [
        # New arrays in place of old ones.
        """
def reduce_scatter(comm, chunks):
    p, r = comm.size, comm.rank
    for step in range(1, p):
        incoming = np.empty_like(chunks[0])
        comm.Sendrecv(chunks[(r - step) % p], (r + 1) % p, recvbuf=incoming, source=(r - 1) % p)
        chunks[(r - step - 1) % p] = chunks[(r - step - 1) % p] + incoming
    return chunks
""",
        # What is passed on is kept apart from the chunks.
        """
def reduce_scatter(comm, chunks):
    p, r = comm.size, comm.rank
    partial = chunks[(r - 1) % p].copy()
    for step in range(p - 1):
        incoming = np.zeros(len(partial))
        comm.Sendrecv(
            sendbuf=partial, dest=(r + 1) % p, recvbuf=incoming, source=(r + p - 1) % p
        )
        partial = incoming + chunks[(r - 2 - step) % p]
    chunks[r] = partial
""",
        # The ring turns to the left.
        """
def reduce_scatter(comm, chunks):
    p, r = comm.size, comm.rank
    incoming = np.empty_like(chunks[0])
    for step in range(p - 1):
        comm.Sendrecv(chunks[(r + 1 + step) % p], (r - 1) % p, recvbuf=incoming, source=(r + 1) % p)
        chunks[(r + 2 + step) % p] += incoming
""",
    ],
    "06.average": [
        """
def average(team, g, s):
    message = np.concatenate([s * g, [s]])
    team.allreduce(message)
    return message[:-1] / message[-1]
""",
        # The mean over the ranks of both: the number of ranks cancels.
        """
def average(team, g, s):
    both = team.allreduce(np.array([*(s * g), s], dtype=float), op="mean")
    return [x / both[-1] for x in both[:-1]]
""",
        """
def average(team, g, s):
    both = np.zeros(len(g) + 1)
    both[0] = s
    for i in range(len(g)):
        both[i + 1] = g[i] * s
    total = team.allreduce(both)
    return tuple(total[1:] / total[0])
""",
    ],
    "08.sums": [
        """
def sums(team, batches):
    most = int(team.allreduce(np.array([len(batches)]), op="max")[0])
    padded = [b.copy() for b in batches]
    padded += [np.zeros(len(batches[0])) for _ in range(most - len(batches))]
    return np.array([team.allreduce(batch) for batch in padded])
""",
        # One allreduce for all rounds.
        """
def sums(team, batches):
    most = np.array([float(len(batches))])
    team.allreduce(most, op="max")
    table = np.zeros((int(most[0]), len(batches[0])))
    table[: len(batches)] = batches
    flat = table.ravel()
    team.allreduce(flat)
    return tuple(flat.reshape(table.shape))
""",
        # Every rank says after each round whether it has more.
        """
def sums(team, batches):
    found, k = [], 0
    while team.allreduce(np.array([float(k < len(batches))]), op="max")[0]:
        x = np.zeros_like(batches[0])
        if k < len(batches):
            x[:] = batches[k]
        team.allreduce(x)
        found.append(x)
        k += 1
    return found
""",
    ],
    "34.auc": [
        """
def auc(team, scores, labels):
    counts = np.zeros(20)
    for score, label in zip(scores, labels):
        counts[10 * label + score] += 1
    team.allreduce(counts)
    negative, positive = counts[:10], counts[10:]
    pairs = 0
    for i in range(10):
        for j in range(10):
            pairs += positive[i] * negative[j] * (1 if i > j else 0.5 if i == j else 0)
    return pairs / (positive.sum() * negative.sum())
""",
        # The area under the curve, by trapezoids.
        """
def auc(team, scores, labels):
    both = np.stack([np.histogram(scores[labels == k], np.arange(11))[0] for k in (0, 1)])
    flat = team.allreduce(both.ravel().astype(float))
    negative, positive = flat.reshape(2, 10)[:, ::-1]
    x = np.concatenate([[0], np.cumsum(negative)]) / negative.sum()
    y = np.concatenate([[0], np.cumsum(positive)]) / positive.sum()
    return np.array(np.trapezoid(y, x))
""",
        # Sorts its own scores in place, which the text allows.
        """
def auc(team, scores, labels):
    scores[:] = scores + 10 * labels
    scores.sort()
    c = team.allreduce(np.bincount(scores, minlength=20)).astype(float)
    return float(c[10:] @ (np.cumsum(c[:10]) - c[:10] / 2) / (c[10:].sum() * c[:10].sum()))
""",
    ],
    "16.loss": [
        # One allreduce less: sums and labels' logits together.
        """
def loss(team, z, y):
    top = z.max(axis=1)
    team.allreduce(top, op="max")
    s, k = z.shape
    both = np.zeros((2, s))
    both[0] = np.exp(z.T - top).sum(axis=0)
    for i, label in enumerate(y):
        if label // k == team.rank:
            both[1, i] = z[i, label % k]
    team.allreduce(both)
    return float(np.mean(np.log(both[0]) + top - both[1]))
""",
        # The label's probability: its exponential, and then one logarithm.
        """
def loss(team, z, y):
    s, k = z.shape
    top = team.allreduce(np.max(z, 1), op="max")
    e = np.exp(z - top[:, None])
    mine = np.arange(team.rank * k, (team.rank + 1) * k)
    picked = (e * (y[:, None] == mine)).sum(axis=1)
    return np.array(-np.log(team.allreduce(picked) / team.allreduce(e.sum(axis=1))).mean())
""",
        # One largest logit for all samples.
        """
def loss(team, z, y):
    c = float(team.allreduce(np.array([z.max()]), op="max")[0])
    sums, labels = [], []
    for i in range(len(y)):
        sums.append(np.exp(z[i] - c).sum())
        at = y[i] - team.rank * z.shape[1]
        labels.append(z[i, at] if 0 <= at < z.shape[1] else 0.0)
    sums, labels = team.allreduce(np.array(sums)), team.allreduce(np.array(labels))
    return sum(np.log(sums) + c - labels) / len(y)
""",
    ],
}
