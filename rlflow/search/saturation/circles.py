"""Choices that make their own needs in a circle."""

import numpy as np

from rlflow.search.saturation.options import Option, in_order


def circles_of(chosen: list[Option]) -> list[set[int]]:
    """Sets of classes, none of which a chosen option makes from outside of the set; none if all is founded."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    founded = {c for option in in_order(chosen) for c in option.makes}
    left = [option for option in chosen if not founded.issuperset(option.makes)]
    position: dict[int, int] = {}  # class → its row and column
    for option in left:
        for c in option.makes:
            if c not in founded:
                position.setdefault(c, len(position))
    edges = set()
    for option in left:
        for c in option.makes:
            if c in position:
                edges.update((position[c], position[n]) for n in option.needs if n in position)
    if not edges:
        return []
    rows, columns = np.array(sorted(edges)).T
    matrix = csr_array((np.ones(len(edges)), (rows, columns)), shape=(len(position), len(position)))
    _, labels = connected_components(matrix, connection="strong")
    open_ = {labels[row] for row, column in edges if labels[row] != labels[column]}
    closed: dict[int, set[int]] = {}
    for c, label in zip(position, labels, strict=True):
        if label not in open_:
            closed.setdefault(label, set()).add(c)
    return [_smaller(members, left) for members in closed.values()]


def _smaller(circle: set[int], chosen: list[Option]) -> set[int]:
    """The shortest circle among classes that make one another, if no chosen option makes it from outside; else all."""
    following: dict[int, list[int]] = {c: [] for c in circle}
    for option in chosen:
        for c in circle.intersection(option.makes):
            following[c] += [n for n in option.needs if n in circle]
    shortest = circle
    for start in following:
        before, queue = {start: None}, [start]
        for c in queue:
            if start in following[c]:
                path = set()
                while c is not None:
                    path.add(c)
                    c = before[c]
                shortest = min(shortest, path, key=len)
                break
            for n in following[c]:
                if n not in before:
                    before[n] = c
                    queue.append(n)
    outside = any(not shortest.isdisjoint(o.makes) and shortest.isdisjoint(o.needs) for o in chosen)
    return circle if outside else shortest
