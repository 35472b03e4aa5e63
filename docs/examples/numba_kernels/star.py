"""Examples of numba_kernels.star."""

# %% [4 ranks] Rank 0 serves the others in the order in which they ask
# shows: Star
from numba_kernels import Team
from numba_kernels.star import Star

team = Team()
star = Star(team, 2, 2)  # two numbers each way
if team.rank == 0:
    total, served = 0.0, 0
    while served < team.size - 1:
        leaf = star.next(0.5)
        if leaf is not None:
            total += star.sent(leaf)[0]
            star.answer_vector(leaf)[:] = total
            star.answer(leaf, [served])
            served += 1
    print("sum of what the leaves sent:", total)
else:
    star.out[:] = team.rank
    star.ask([team.rank])
team.barrier()
star.close()
