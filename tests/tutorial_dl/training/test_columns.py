"""The columns of a history are told before anything is trained."""


def each_rank():
    from numba_kernels.team.team import Team
    from tutorial_dl import Trainer, data, models
    from tutorial_dl.training.columns import columns

    team, digits = Team(), data.digits()
    for strategy in ("serial", "synchronous", "downpour", "elastic_averaging"):
        alone = team.split(team.rank) if strategy == "serial" else team
        model = models.softmax(digits, seed=1)
        trainer = Trainer(model, digits, strategy, batch_size=300, progress=False, team=alone)
        told = columns(trainer)
        trainer.fit(1)
        row = trainer.history.last
        assert sorted(told) == sorted(row.keys() - {"epoch"}), (strategy, told, row)


def test_columns_are_those_of_the_history(on_ranks):
    on_ranks(2, each_rank)
