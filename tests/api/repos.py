"""Git repositories for tests, owned by whoever commands of worktrees run as."""
import os
import pwd
import shutil
import subprocess
import tempfile

from harness import users

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
       "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


class Repo:
    """A repository with branches main and feature/x and a tag v1 (or with nothing but a first commit), and a directory for worktrees beside it."""

    def __init__(self, user=None, empty=False):
        self.user = (user or users()) if os.geteuid() == 0 else None  # of commands, on a server that runs as root
        self.dir = tempfile.mkdtemp(prefix="sandgate-repo-")
        os.chmod(self.dir, 0o755)
        self.path = os.path.join(self.dir, "repo")
        self.trees = os.path.join(self.dir, "trees")
        os.mkdir(self.path)
        if self.user:
            os.chown(self.path, self.user, self.user)
            os.mkdir(self.trees, 0o711)
        if empty:
            self.sh("git init -q -b main . && git commit -q --allow-empty -m first")
            return
        self.sh("git init -q -b main . && echo one > a.txt && mkdir -p d && echo two > d/b.txt && ln -s a.txt link && printf '#!/bin/sh\\necho ran\\n' > run.sh && "
                "chmod +x run.sh && echo '*.o' > .gitignore && git add . && git commit -qm first && git tag v1 && git checkout -qb feature/x && echo three > c.txt && "
                "git add . && git commit -qm second && git checkout -q main")

    @property
    def user_name(self):
        """As the lease says it."""
        uid = self.user or os.geteuid()
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        shutil.rmtree(self.dir, ignore_errors=True)

    def as_user(self, text):
        cmd = ["sh", "-ec", text]
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", *cmd] if self.user else cmd

    def sh(self, text, **env):
        return subprocess.run(self.as_user(text), cwd=self.path, env=dict(ENV, **env), check=True, stdout=subprocess.PIPE, text=True).stdout

    def git(self, *args):
        return subprocess.run(["git", "-c", "safe.directory=*", "-C", self.path, *args], env=ENV, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def commit(self, ref="HEAD"):
        return self.git("rev-parse", ref + "^{commit}")

    def state(self):
        """What leases must leave as it was."""
        return self.git("worktree", "list", "--porcelain"), self.git("for-each-ref"), sorted(os.listdir(self.trees) if os.path.exists(self.trees) else [])

    def config(self, backends=("worktree",), **more):
        w = {"repos": {"proj": self.path}, "dir": self.trees}
        if self.user:
            w["user"] = str(self.user)
        return {"backends": {"enabled": list(backends)}, "worktree": dict(w, **more)}


def processes_with(text):
    """Live processes whose command line holds text."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if text.encode() in f.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found
