"""Commands and their typed results."""

import os
import pickle

import pytest
from conftest import program
from test_mount import write_group

import icechunkfs


def test_a_commit_and_its_history(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        assert not icechunkfs.commit(path, "nothing")
        write_group(path, "a")
        status = icechunkfs.status(path)
        assert (status.clean, status.branch, len(status.added)) == (False, "main", 1)
        (change,) = icechunkfs.diff(path).nodes
        assert change.what == "added" and change.after["node_type"] == "group"
        made = icechunkfs.commit(path, "-m: Salinity of May\nsecond line", metadata={"run": 7, "who": "me", "all": [1, None]})
        assert made and made.nodes == 1 and icechunkfs.status(path).clean
        assert icechunkfs.status(path).base == made.snapshot
    newest, *older = icechunkfs.log(repo)
    assert (newest.id, newest.message) == (made.snapshot, "-m: Salinity of May\nsecond line")
    mine = {key: value for key, value in newest.metadata.items() if key != "__icechunk"}
    assert mine == {"run": 7, "who": "me", "all": [1, None]}
    assert newest.written_at.utcoffset().total_seconds() == 0 and newest.parent_id == older[0].id
    assert len(icechunkfs.log(repo, count=1)) == 1
    assert icechunkfs.refs(repo).branches == {"main": made.snapshot}
    difference = icechunkfs.diff(repo, "main~1", "main")
    assert (difference.to, difference.summary.added.groups) == (made.snapshot, 1)
    assert difference.nodes[0].what == ("added",)
    with pytest.raises(TypeError):
        icechunkfs.diff(repo, "main")
    with pytest.raises(AttributeError):
        newest.id = "another"


def test_a_path_is_restored_in_a_mount_and_in_a_repository(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as mount:
        write_group(mount, "made")
        icechunkfs.commit(mount, "with a group")
        restored = icechunkfs.restore(mount, ".", "main~1")
        assert restored and restored.snapshot is None and restored.deleted == ("/made",)
        assert icechunkfs.status(mount).deleted == ("/made",)
        icechunkfs.discard(mount)
    before = icechunkfs.refs(repo).branches["main"]
    preview = icechunkfs.restore(repo, ".", "main~1", dry_run=True)
    assert (preview.snapshot, preview.deleted) == (None, ("/made",))
    restored = icechunkfs.restore(repo, ".", "main~1", message="Back", metadata={"run": 7})
    assert icechunkfs.refs(repo).branches == {"main": restored.snapshot}
    assert (icechunkfs.log(repo)[0].message, icechunkfs.log(repo)[0].metadata["run"]) == ("Back", 7)
    assert icechunkfs.restore(repo, "made", before).created == ("/made",)
    assert not icechunkfs.restore(repo, "made", before)
    with pytest.raises(icechunkfs.NotFoundError):
        icechunkfs.restore(repo, "nothing", "main")


def test_a_branch_of_a_job_is_merged(repo, scratch):
    with icechunkfs.mount(repo, branch="job", create=True, scratch=scratch()) as path:
        write_group(path, "made")
        icechunkfs.commit(path, "by the job")
    preview = icechunkfs.merge(repo, "job", dry_run=True)
    assert not preview and preview.nodes == 1
    merged = icechunkfs.merge(repo, "job", message="One result", metadata={"job": 42}, delete_source=True)
    assert merged and merged.deleted and len(merged.commits) == 1
    assert icechunkfs.refs(repo).branches == {"main": merged.snapshot} and merged.made == (merged.snapshot,)
    (newest,) = icechunkfs.log(repo, "made")
    assert (newest.id, newest.path, newest.metadata["job"]) == (merged.snapshot, "/made", 42)
    # Both sides make the same group.
    for branch in ["one", "other"]:
        with icechunkfs.mount(repo, branch=branch, create=True, scratch=scratch()) as path:
            write_group(path, "both")
            icechunkfs.commit(path, branch)
    assert icechunkfs.merge(repo, "one")
    before = icechunkfs.log(repo)
    with pytest.raises(icechunkfs.ConflictError, match="NewNodeConflictsWithExistingNode"):
        icechunkfs.merge(repo, "other")
    assert icechunkfs.log(repo) == before


def test_discard_by_path_and_all(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        write_group(path, "a")
        write_group(path, "b")
        icechunkfs.discard(path, "a")
        assert sorted(os.listdir(path)) == ["b", "zarr.json"]
        icechunkfs.discard(path)
        assert icechunkfs.status(path).clean
        with pytest.raises(icechunkfs.NotFoundError):
            icechunkfs.status(path.parent)


def test_conflicts_are_exceptions_with_the_conflicts(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as mine, icechunkfs.mount(repo, scratch=scratch()) as other:
        for path, title in ((other, "theirs"), (mine, "ours")):
            (path / "zarr.json").write_text('{"zarr_format":3,"node_type":"group","attributes":{"title":"%s"}}' % title)
        theirs = icechunkfs.commit(other, "theirs")
        with pytest.raises(icechunkfs.ConflictError) as refused:
            icechunkfs.commit(mine, "ours")
        (conflict,) = refused.value.conflicts
        assert (conflict.path, conflict.other, conflict.message) == ("/", theirs.snapshot, "theirs")
        # It crosses processes with everything it has, as a worker's failure does.
        again = pickle.loads(pickle.dumps(refused.value))
        assert (again.errno, again.conflicts, str(again)) == (refused.value.errno, (conflict,), str(refused.value))
        with pytest.raises(icechunkfs.ConflictError):
            icechunkfs.refresh(mine)
        with pytest.raises(ValueError):
            icechunkfs.resolve(mine, "/", side="both")
        assert icechunkfs.resolve(mine, "/", side="theirs") == 1
        assert icechunkfs.refresh(mine).base == theirs.snapshot
        assert "theirs" in (mine / "zarr.json").read_text()
        # Concurrent commits that change other things are rebased over.
        write_group(mine, "a")
        write_group(other, "b")
        icechunkfs.commit(mine, "a")
        assert len(icechunkfs.commit(other, "b").rebased_over) == 1


def test_violations_are_invalid_errors(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        (path / "bad").mkdir()
        (path / "bad/zarr.json").write_text("no JSON")
        with pytest.raises(icechunkfs.InvalidError, match="bad"):
            icechunkfs.commit(path, "no")
        assert icechunkfs.status(path).faults[0].path.strip("/") == "bad/zarr.json" or icechunkfs.status(path).faults
        icechunkfs.discard(path)
        with pytest.raises(icechunkfs.UsageError):
            icechunkfs.commit(path, "no", on_conflict="nobody's")
        with pytest.raises(ValueError):
            icechunkfs.commit(path, "no", metadata={"a=b": 1})


def test_a_progress_bar_is_shown_on_request(repo, scratch, capfd):
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        write_group(path, "a")
        assert icechunkfs.commit(path, "one", progress=True)
        assert "commit" in capfd.readouterr().err
        write_group(path, "b")
        assert icechunkfs.commit(path, "two")
        assert capfd.readouterr().err == ""


def test_a_mount_object_names_its_repository(repo, scratch):
    mount = icechunkfs.mount(repo, scratch=scratch(), memory="64M")
    with mount:
        assert icechunkfs.refs(mount) == icechunkfs.refs(repo)
        assert icechunkfs.log(mount)[-1].parent_id is None


def test_the_program_is_the_one_that_is_tested():
    assert icechunkfs.program() == os.environ["ICECHUNKFS_BINARY"]
    assert program("--version").split()[-1] == icechunkfs.version()


def test_histories_are_copied_between_repositories(repo, scratch, tmp_path):
    copy = tmp_path / "copy"
    cloned = icechunkfs.clone(repo, copy)
    assert cloned.branches == 1 and cloned.objects > 0
    assert icechunkfs.refs(copy) == icechunkfs.refs(repo)
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        write_group(path, "made")
        icechunkfs.commit(path, "one more")
    assert icechunkfs.push(repo, copy, dry_run=True).commits == 1
    pushed = icechunkfs.push(repo, copy, "main")
    assert pushed and [(ref.name, ref.change) for ref in pushed.refs] == [("main", "forward")]
    assert not icechunkfs.pull(repo, copy)
    with icechunkfs.mount(copy, scratch=scratch()) as path:
        write_group(path, "there")
        icechunkfs.commit(path, "there")
    with pytest.raises(icechunkfs.ConflictError):
        icechunkfs.push(repo, copy)
    assert icechunkfs.pull(repo, copy)
    assert icechunkfs.refs(copy) == icechunkfs.refs(repo)
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        write_group(path, "last")
        icechunkfs.commit(path, "last")
    assert icechunkfs.pull(copy).commits == 1, "from where it was cloned"
    with pytest.raises(ValueError):
        icechunkfs.pull(copy, None, "main")
