"""A search of which a process is killed 20 times, and a long one."""

import random


def test_twenty_kills(tests, tmp_path):
    """No trial is lost, and none counts twice."""
    draw = random.Random(0)
    victims = [(draw.randrange(5), draw.randrange(6)) for _ in range(20)]
    tests("test_tune_command").check_kills(tmp_path, victims, 12)


def test_memory_over_eight_thousand_trials(tests):
    tests("test_coordinator").check_memory(8000)
