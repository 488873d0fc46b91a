"""Lazy attributes: computed once per instance, and never behind a lock that instances share."""

from threading import Barrier, Thread

from toolkit.questions.space.cross_products import LazyProperty


class Counting:
    """Counts how often its value is computed; computes only while another instance does."""

    def __init__(self, barrier=None):
        self.barrier, self.calls = barrier, 0

    @LazyProperty
    def value(self):
        """What it is."""
        self.calls += 1
        if self.barrier is not None:
            self.barrier.wait(timeout=20)
        return [self.calls]


class Other(Counting):
    """Overrides the attribute with one of its own."""

    @LazyProperty
    def value(self):
        return "other"


def test_computed_once_for_each_instance():
    one, two = Counting(), Counting()
    assert one.value is one.value
    assert one.value is not two.value
    assert (one.calls, two.calls) == (1, 1)
    assert Counting.value.__doc__ == "What it is."
    assert Other().value == "other"


def test_instances_do_not_wait_for_each_other():
    barrier = Barrier(2)  # both get past it only while both are computing
    counting = [Counting(barrier), Counting(barrier)]
    threads = [Thread(target=lambda own=own: own.value) for own in counting]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not barrier.broken
    assert [vars(own).get("value") for own in counting] == [[1], [1]]
