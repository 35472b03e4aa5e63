"""mpiexec's own remarks are taken out of what ranks print, and nothing else is."""

from __future__ import annotations

import socket

import pytest

from numba_kernels.launch.remarks import Remarks

MPICH = f"""
{"=" * 83}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 3520 RUNNING AT node
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{"=" * 83}
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
""".encode()
RULE = "-" * 74
HOST = socket.gethostname().partition(".")[0]
OPEN_MPI_KILLED = f"""{RULE}
prterun noticed that process rank 1 with PID 5930 on node vm exited on
signal 9 (Killed).
{RULE}
""".encode()
OPEN_MPI_STATUS = f"""[{HOST}:11780] PMIX ERROR: PMIX_ERR_UNREACH in file x.c at line 121
{RULE}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-5953@1,1]
   Exit code:    3
{RULE}
[warn] Epoll MOD(1) on fd 20 failed. Old events were 6; read change was 0 (none): Bad file descriptor
""".encode()  # noqa: E501  (recorded)
OPEN_MPI_4 = f"""{RULE}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULE}
{RULE}
mpiexec detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[38101,1],1]
  Exit code:    3
{RULE}
""".encode()


@pytest.mark.parametrize("remark", [MPICH, OPEN_MPI_KILLED, OPEN_MPI_STATUS, OPEN_MPI_4])
@pytest.mark.parametrize(
    "before, after",
    [
        (b"", b""),
        (b"a\n", b"b\n"),
        (b"= mine\n=\n", b"=====\nYOUR text\n"),
        (b"=" * 83 + b"\nmine\n", b"=" * 83 + b"\n"),
        (b"-" * 74 + b"\nprterun is mine\n", b"-" * 74 + b"\n"),
        (b"50%\r", b"[x] This is mine"),
    ],
)
def test_mpiexecs_remarks_go_and_nothing_else(remark, before, after):
    if before.endswith(b"\r") and remark is not MPICH:
        before += b"\n"  # Open MPI's begin without an empty line
    data = before + remark + after
    for size in (1, 2, 7, 74, 83, 84, 85, 1000):
        remarks = Remarks()
        shown = b"".join(remarks.feed(data[i : i + size]) for i in range(0, len(data), size))
        shown += remarks.feed(b"", last=True)
        # The empty line above the banner is mpiexec's, too, but may have been shown already.
        assert shown in (before + after, before + b"\n" + after)


def test_what_open_mpi_says_of_a_cause_stays():
    said = (
        f"{RULE}\nMPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n{RULE}\n".encode()
    )
    remarks = Remarks()
    assert remarks.feed(said + OPEN_MPI_STATUS) + remarks.feed(b"", last=True) == said


def test_a_message_has_a_line_of_its_own_below_a_bar():
    remarks = Remarks()
    for data, shown in (
        (b"\repoch 1 of 2:   0%|", b"\repoch 1 of 2:   0%|"),
        (b"stall: rank 0 has waited\n", b"\nstall: rank 0 has waited\n"),
        (b"note: one\n", b"note: one\n"),
        (b"\repoch 1 of 2:   1%|", b"\repoch 1 of 2:   1%|"),
        (b"|\n", b"|\n"),
    ):
        assert remarks.feed(data) == shown


def test_unfinished_lines_do_not_wait():
    remarks = Remarks()
    assert remarks.feed(b"12%\r") == b"12%\r"
    assert remarks.feed(b"13%\r==") == b"13%\r=="
    assert remarks.feed(b"\n==") == b"\n"  # "==" may begin a rule, so it is held back
    assert remarks.feed(b"= a\n[mpi") == b"=== a\n"
    assert remarks.feed(b"", last=True) == b"[mpi"
