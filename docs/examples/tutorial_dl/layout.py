"""Examples of tutorial_dl.layout."""

# %% Who serves whom
# shows: Layout, Role, hub_ranks, worker_ranks
from tutorial_dl.layout import Layout, hub_ranks, worker_ranks

layout = Layout(masters=2, workers=2, devices=2)
roles = layout.roles()  # a Role per rank
print(layout.ranks, "ranks:", [role.role for role in roles])
print("the star of rank 0:", hub_ranks(roles, 0))
print("with rank 3, one batch is computed by", worker_ranks(roles, 3))
