#!/usr/bin/env python3
"""Keep detached jobs on a machine: ``python3 job.py VERB ROOT``, one JSON object on stdin, one on stdout.

Verbs: start, poll, collect, cancel, list. Exit 0 with an answer; 2 with a message on stderr when the request
or the machine is at fault; 3 when ROOT itself is gone. Standard library only, Python >= 3.9, so that it runs
as it is under a system's interpreter. A job is ROOT/jobs/<name>/<generation>/ with

    command    the bash script                      log        its stdout and stderr
    digest     what the caller calls the same job   pid        the supervisor: pid and start time
    started    JSON: started_at, isolation          exit_code  written last, atomically, whatever happened
    collected, cancelled                            marks: the next start begins anew

The environment, secrets and all, never touches the disk: the supervisor is forked with it in memory. The tree
of a job is: supervisor > keeper > ... > bash command. The keeper is ``unshare`` with a PID namespace of its
own, or ``job.py contain`` where there is none; either takes the job down when the supervisor is killed.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

LINUX = sys.platform == "linux"
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
GRACE_SECONDS = 10.0  # for a job that makes way for another one
KILL_SECONDS = 20.0  # a killed process that is still there after this hangs in the kernel
RECORD_SECONDS = 60.0  # how long a full disk is given to record an exit code
NAMESPACE_FLAGS = ("--pid", "--fork", "--mount-proc", "--kill-child")
# bash as PID 1 reaps orphans; the script is its child, so that signals mean to it what they mean anywhere.
RUN_AS_CHILD = '"$BASH" "$0"; exit $?'
IS_NAMESPACE = '[ $$ -eq 1 ] && read -r name < /proc/1/comm && [ "$name" = bash ]'

Answer = dict[str, Any]


class JobError(Exception):
    """The request cannot be done; the message says why."""


class Process(NamedTuple):
    """A process: ``started`` tells it from a later one with the same pid."""

    pid: int
    parent: int
    state: str
    started: str


# --- processes ---


def read_boot_id() -> str:
    """Return what changes when the machine restarts: start times are counted from there."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def parse_proc_stat(text: str, boot_id: str) -> Process:
    """Parse /proc/<pid>/stat, whose second field may hold anything, brackets too."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(")")[2].split()
    return Process(int(pid), int(fields[1]), fields[0], f"{boot_id}/{fields[19]}")


def parse_ps_line(line: str) -> Process:
    """Parse a line of ``ps -o pid=,ppid=,state=,lstart=``, for machines without /proc."""
    pid, parent, state, started = line.split(maxsplit=3)
    return Process(int(pid), int(parent), state[0], started.strip())


def read_processes(pids: Iterable[int] | None = None) -> dict[int, Process]:
    """Return the live processes by pid (all, or those asked for); zombies are not alive."""
    found: list[Process] = []
    if LINUX:
        boot_id = read_boot_id()
        everyone = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        for pid in everyone if pids is None else pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.append(parse_proc_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"), boot_id))
    else:
        whom = ["-ax"] if pids is None else ["-p", ",".join(map(str, pids))]
        listing = subprocess.run(
            ["ps", *whom, "-o", "pid=,ppid=,state=,lstart="], stdout=subprocess.PIPE, check=False
        )
        found += [parse_ps_line(line) for line in listing.stdout.decode().splitlines()]
    return {process.pid: process for process in found if process.state not in "ZX"}


def find_descendants(pid: int) -> list[Process]:
    """Return every live process below ``pid``, namespaces and sessions notwithstanding."""
    children: dict[int, list[Process]] = {}
    for process in read_processes().values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [process.pid for process in below]
    return found


def read_argv(pid: int) -> list[str]:
    """Return a process's command line; nothing where it is gone or there is no /proc."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def send_signal(processes: Iterable[Process], number: signal.Signals) -> None:
    """Signal processes; one that is gone by now is what was wanted."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; return whether it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def kill_descendants() -> None:
    """Kill and reap everything below this process."""

    def all_gone() -> bool:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        below = find_descendants(os.getpid())
        send_signal(below, signal.SIGKILL)
        return not below

    wait_until(all_gone, KILL_SECONDS)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none can leave the tree (Linux)."""
    if LINUX and LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however it ends (Linux)."""
    if LINUX:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(137)


# --- files ---


def write_atomically(path: Path, text: str) -> None:
    """Write a file of which no reader sees a half."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def read_exit_code(generation: Path) -> int | None:
    """Return the recorded exit code, if there is one."""
    try:
        return int((generation / "exit_code").read_text())
    except (FileNotFoundError, ValueError):
        return None


def read_digest(generation: Path) -> str:
    """Return what the caller called the job; empty for one that a full disk kept from being written."""
    try:
        return (generation / "digest").read_text()
    except FileNotFoundError:
        return ""


def find_supervisor(generation: Path) -> int | None:
    """Return the supervisor's pid if that very process lives: a pid alone may be somebody else's by now."""
    try:
        text, _, started = (generation / "pid").read_text().strip().partition(" ")
        pid = int(text)
    except (FileNotFoundError, ValueError):
        return None
    process = read_processes([pid]).get(pid)
    return process.pid if process and process.started == started else None


def read_state(generation: Path) -> tuple[str, int | None]:
    """Return running, exited, lost or absent, and the exit code."""
    if not generation.is_dir():
        return "absent", None
    code = read_exit_code(generation)
    if code is None and find_supervisor(generation) is not None:
        return "running", None
    if code is None:  # it may have ended between the two questions
        code = read_exit_code(generation)
    return ("lost", None) if code is None else ("exited", code)


def describe(generation: Path) -> Answer:
    """Return everything about a generation but its log."""
    state, code = read_state(generation)
    started: Answer = {"started_at": None, "isolation": None}
    with contextlib.suppress(FileNotFoundError, ValueError):
        started = json.loads((generation / "started").read_text())
    seconds, reason = 0.0, None
    if started["started_at"] is not None:
        ended = (generation / "exit_code").stat().st_mtime if state == "exited" else time.time()
        seconds = max(0.0, ended - started["started_at"])
    if state == "lost":
        free = shutil.disk_usage(generation).free
        reason = "its process is gone without an exit code: it was killed, or the machine restarted"
        if free < 1 << 20:
            reason = f"its process is gone without an exit code, and the disk is full ({free} bytes free)"
    return {
        "name": generation.parent.name,
        "generation": int(generation.name),
        "state": state,
        "exit_code": code,
        "seconds": seconds,
        "reason": reason,
        "cancelled": (generation / "cancelled").exists(),
        "collected": (generation / "collected").exists(),
        **started,
    }


def find_generation(root: Path, request: Answer) -> Path:
    """Return the directory of the generation that a request names."""
    return find_job(root, request) / str(int(request["generation"]))


def find_job(root: Path, request: Answer) -> Path:
    """Return the directory of the job that a request names."""
    if not NAME.fullmatch(str(request["name"])):
        raise JobError(f"{request['name']!r} is no name for a job: letters, digits, '.', '_' and '-' only")
    return root / "jobs" / str(request["name"])


def list_generations(job: Path) -> list[Path]:
    """Return a job's generations, oldest first."""
    return sorted((path for path in job.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


@contextlib.contextmanager
def locked(job: Path) -> Iterator[int]:
    """Hold a job's lock: one start or cancel at a time; a supervisor shares it until it has begun."""
    descriptor = os.open(job, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


# --- the supervisor ---


def find_keeper(isolate: bool, bash: str, command: Path) -> tuple[str, list[str]]:
    """Return the strongest isolation that really works here, and the command line that runs the job in it."""
    unshare = shutil.which("unshare")
    modes = [("user-pid-namespace", [unshare or "", "--user", "--map-root-user", *NAMESPACE_FLAGS])]
    if os.geteuid() == 0:
        modes.insert(0, ("pid-namespace", [unshare or "", *NAMESPACE_FLAGS]))
    for mode, argv in modes if isolate and unshare else []:
        if subprocess.run([*argv, bash, "-c", IS_NAMESPACE], check=False).returncode == 0:
            return mode, [*argv, bash, "-c", RUN_AS_CHILD, str(command)]
    return "process-tree", [
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).resolve()),
        "contain",
        str(command),
    ]


def contain(command: str) -> int:
    """Run a script and kill what it leaves; stdin is a lifeline, closed when the supervisor is gone."""
    adopt_orphans()
    own_pid = os.getpid()
    script = subprocess.Popen(
        [shutil.which("bash") or "/bin/bash", command],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(own_pid),
    )
    code: int | None = None
    while code is None and not select.select([sys.stdin], [], [], 0.1)[0]:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == script.pid:
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(script.pid, signal.SIGKILL)
    kill_descendants()
    return 137 if code is None else code


def start_command(generation: Path, request: Answer) -> subprocess.Popen[bytes]:
    """Record who supervises, then start the command in the strongest isolation there is."""
    own_pid = os.getpid()
    bash = shutil.which("bash") or "/bin/bash"
    mode, argv = find_keeper(bool(request.get("isolate", True)), bash, generation / "command")
    # Reserved now, so that a disk that the job fills can still take the exit code.
    (generation / "exit_code.partial").write_text(" " * 16)
    write_atomically(generation / "started", json.dumps({"started_at": time.time(), "isolation": mode}))
    write_atomically(generation / "pid", f"{own_pid} {read_processes([own_pid])[own_pid].started}\n")
    with (generation / "log").open("ab") as log:
        return subprocess.Popen(
            argv,
            cwd=generation,
            env={**os.environ, "FINETUNE_JOB_ISOLATION": mode, **request.get("env", {})},
            stdin=subprocess.PIPE if mode == "process-tree" else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=(lambda: die_with_parent(own_pid)) if mode != "process-tree" else None,
        )


def record_exit(generation: Path, code: int) -> None:
    """Write the exit code into the space reserved for it; a full disk gets some time to be freed."""

    def recorded() -> bool:
        try:
            with (generation / "exit_code.partial").open("r+") as file:
                file.write(f"{code}\n".ljust(16))
            (generation / "exit_code.partial").replace(generation / "exit_code")
        except FileNotFoundError:
            return True  # the machine's directory was deleted: nobody is left to tell
        except OSError:
            return False
        return True

    wait_until(recorded, RECORD_SECONDS)


def supervise(generation: Path, request: Answer, ready: int, lock: int) -> NoReturn:
    """Run the command to its end and record it; never returns."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.chdir("/")
        adopt_orphans()
        try:
            keeper = start_command(generation, request)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            os.write(ready, str(error).encode())
        else:
            os.write(ready, b"ready")
            os.close(ready)
            os.close(lock)
            code = keeper.wait()
            kill_descendants()
            record_exit(generation, code if code >= 0 else 128 - code)
            status = 0
    finally:
        os._exit(status)


def launch(generation: Path, request: Answer, lock: int) -> None:
    """Start a supervisor that outlives this process and its connection; wait until it has begun."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.close(readable)
        supervise(generation, request, writable, lock)
    os.close(writable)
    os.waitpid(child, 0)
    with os.fdopen(readable, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    if message != "ready":
        cause = message or "its supervisor was killed"
        raise JobError(f"job {generation.parent.name} did not start: {cause}")


# --- verbs ---


def start(root: Path, request: Answer) -> Answer:
    """Attach to the job if it runs, or has ended and nobody knows it yet; else begin a new generation."""
    job = find_job(root, request)
    job.mkdir(parents=True, exist_ok=True)
    with locked(job) as lock:
        generations = list_generations(job)
        if generations and can_attach(generations[-1], str(request["digest"])):
            return {**describe(generations[-1]), "attached": True}
        if generations:
            if find_supervisor(generations[-1]) is not None:
                (generations[-1] / "cancelled").touch()
            left = end_generation(generations[-1], GRACE_SECONDS)
            if left:
                raise JobError(f"the earlier job {job.name} cannot be killed: pids {left}")
        generation = job / str(int(generations[-1].name) + 1 if generations else 1)
        generation.mkdir()
        (generation / "digest").write_text(str(request["digest"]))
        (generation / "command").write_text(request["script"])
        launch(generation, request, lock)
        return {**describe(generation), "attached": False}


def can_attach(generation: Path, digest: str) -> bool:
    """Tell whether a start means this generation."""
    facts = describe(generation)
    if facts["state"] not in ("running", "exited") or facts["cancelled"] or facts["collected"]:
        return False
    return read_digest(generation) == digest


def poll(root: Path, request: Answer) -> Answer:
    """Answer a generation's state, and up to ``limit`` bytes from ``offset`` of its log or another file."""
    generation = find_generation(root, request)
    file = str(request.get("file", "log"))
    if not NAME.fullmatch(file):
        raise JobError(f"{file!r} is no name for a job's file: letters, digits, '.', '_' and '-' only")
    answer = describe(generation)  # before the log: what an ended job wrote is then all there
    data, size = b"", 0
    with contextlib.suppress(FileNotFoundError), (generation / file).open("rb") as log:
        size = os.fstat(log.fileno()).st_size
        log.seek(int(request["offset"]))
        data = log.read(int(request["limit"]))
    return {**answer, "log": base64.b64encode(data).decode(), "log_size": size}


def collect(root: Path, request: Answer) -> Answer:
    """Mark a generation's result as consumed: the next start begins anew."""
    generation = find_generation(root, request)
    if generation.is_dir():
        (generation / "collected").touch()
    return {}


def cancel(root: Path, request: Answer) -> Answer:
    """End a generation's processes; answer the pids that could not be ended."""
    generation = find_generation(root, request)
    if not generation.is_dir():
        return {"left": []}
    with locked(generation.parent):
        (generation / "cancelled").touch()
        return {"left": end_generation(generation, float(request["grace_seconds"]))}


def end_generation(generation: Path, grace_seconds: float) -> list[int]:
    """End the whole tree, with TERM and then KILL, and wait until it is gone; return the pids that are left."""
    command = str(generation / "command")
    supervisor = find_supervisor(generation)
    if supervisor is None:  # what it kept is about to end by itself
        wait_until(lambda: not find_kept(command), KILL_SECONDS)
        return find_kept(command)
    deadline = time.monotonic() + grace_seconds
    ask_to_end(supervisor, command, grace_seconds)

    def is_gone() -> bool:
        return find_supervisor(generation) is None

    def is_killed() -> bool:
        if is_gone():
            return True
        send_signal(find_descendants(supervisor), signal.SIGKILL)
        return False

    wait_until(is_gone, deadline - time.monotonic())
    seen = find_descendants(supervisor)
    if not wait_until(is_killed, KILL_SECONDS):
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGKILL)
        wait_until(is_gone, KILL_SECONDS)
    alive = read_processes([process.pid for process in seen])
    return [pid for pid, _, _, started in seen if pid in alive and alive[pid].started == started]


def ask_to_end(supervisor: int, command: str, grace_seconds: float) -> None:
    """Send TERM to a job's processes, and to the shells of its script once the others have ended.

    A shell must neither go on to its next line nor end before: the end of the script ends everybody's grace.
    """
    shells, others = split_tree(supervisor, command)
    send_signal(shells, signal.SIGSTOP)
    send_signal(others, signal.SIGTERM)
    wait_until(lambda: not split_tree(supervisor, command)[1], grace_seconds)
    send_signal(shells, signal.SIGTERM)
    send_signal(shells, signal.SIGCONT)


def split_tree(supervisor: int, command: str) -> tuple[list[Process], list[Process]]:
    """Return the shells that run the script, and what they started; neither holds the keeper."""
    below = [process for process in find_descendants(supervisor) if process.parent != supervisor]
    argvs = {process.pid: read_argv(process.pid) for process in below}
    shells = [process for process in below if argvs[process.pid][1:] == [command]]
    return shells, [process for process in below if argvs[process.pid][-1:] != [command]]


def find_kept(command: str) -> list[int]:
    """Return the pids of keepers and shells of a script, whoever supervises them."""
    return [pid for pid in read_processes() if read_argv(pid)[-1:] == [command]]


def list_jobs(root: Path, _: Answer) -> Answer:
    """Answer every generation of every job."""
    jobs = sorted((root / "jobs").iterdir()) if (root / "jobs").is_dir() else []
    found = [generation for job in jobs for generation in list_generations(job)]
    return {"jobs": [{**describe(path), "digest": read_digest(path)} for path in found]}


VERBS = {"start": start, "poll": poll, "collect": collect, "cancel": cancel, "list": list_jobs}


def main(argv: list[str]) -> int:
    """Do one verb; return the exit code."""
    if len(argv) != 3 or argv[1] not in (*VERBS, "contain"):
        print(f"usage: job.py {'|'.join(VERBS)} ROOT", file=sys.stderr)
        return 2
    if argv[1] == "contain":
        return contain(argv[2])
    root = Path(argv[2]).absolute()
    if not root.is_dir():
        print(f"the machine's directory {root} is gone", file=sys.stderr)
        return 3
    try:
        answer = VERBS[argv[1]](root, json.loads(sys.stdin.buffer.read() or b"{}"))
    except KeyError as error:
        print(f"{argv[1]}: the request lacks {error}", file=sys.stderr)
    except (JobError, OSError, ValueError) as error:
        print(f"{argv[1]}: {error}", file=sys.stderr)
    else:
        print(json.dumps(answer))
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
