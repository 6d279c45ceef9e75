"""A program that builds templates with the unmodified public SDK, and creates sandboxes from them."""
import pathlib
import sys
import tempfile

import e2b
from e2b import Sandbox, Template


def eq(what, got, want):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def build(template, name, **more):
    logs = []
    Template.build(template, name, on_build_logs=lambda e: logs.append(e.message), **more)
    return "\n".join(logs)


def failure(template, name, **more):
    try:
        build(template, name, **more)
    except e2b.BuildException as e:
        return str(e)
    raise AssertionError(f"{name}: the build succeeded, want a failure")


files = pathlib.Path(tempfile.mkdtemp())
(files / "src" / "deep").mkdir(parents=True)
(files / "src" / "a.txt").write_text("a")
(files / "src" / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
(files / "src" / "deep" / "run.sh").chmod(0o755)
(files / "b.txt").write_text("b")


def steps():
    return (
        Template(file_context_path=str(files))
        .from_base_image()
        .set_envs({"FOO": "bar", "BOTH": "$FOO/x"})
        .run_cmd("echo $FOO > /tmp/foo; whoami > /tmp/who; pwd > /tmp/pwd")
        .copy("src", "/opt/app/", user="root")
        .copy("b.txt", "b.txt", mode=0o640)
        .set_workdir("/srv/x")
        .run_cmd("id -un > /srv/x/who", user="root")
    )


def story():
    return steps().set_start_cmd("python3 -m http.server 8123 --directory /opt/app", "sleep 20")


name = "story-" + sys.argv[1]
log = build(story(), name, cpu_count=1, memory_mb=512)
assert "CACHED" not in log, log
log = build(story(), name, cpu_count=1, memory_mb=512)
eq("cached steps", log.count("CACHED"), 5)  # with the user
log = build(steps().skip_cache().run_cmd("true"), name + "-more")
eq("cached steps below a new one", log.count("CACHED"), 5)
eq("exists", Template.alias_exists(name), True)
eq("does not exist", Template.alias_exists(name + "-no"), False)

# The ready command only waits, so the hub does not run it: the server may start a little later.
with Sandbox.create(name) as sb:
    out = sb.commands.run(
        "cat /tmp/foo /tmp/who /tmp/pwd /srv/x/who /opt/app/a.txt; echo; /opt/app/deep/run.sh; stat -c '%a %U' ~/b.txt; echo $FOO $BOTH;"
        "curl -s --retry-connrefused --retry 200 --retry-delay 1 localhost:8123/a.txt"
    ).stdout
    eq("words", out.split(), ["bar", "user", "/home/user", "root", "a", "ran", "640", "user", "bar", "/x", "a"])

# A template on a template, and one that another step changes.
log = build(Template().from_template(name).run_cmd("cat /opt/app/a.txt > /tmp/copied"), name + "-top")
with Sandbox.create(name + "-top") as sb:
    eq("file of the base", sb.files.read("/tmp/copied"), "a")

eq("unknown user", failure(Template().from_base_image().run_cmd("whoami", user="root123"), name + "-bad"),
   "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'")
eq("exit code", failure(Template().from_base_image().run_cmd("exit 3"), name + "-bad"), "failed to run command 'exit 3': exit status 3")
assert "not found" in failure(Template().from_template("no-such-template"), name + "-bad")
print("passed template")
