"""The isotonic fits of Venn-Abers predictors, in Python that `backend.compiled` also compiles."""

from typing import Any, no_type_check


@no_type_check
def venn_abers_pass(widths, heights, slopes):
    """Fill the slopes of `calibrators._isotonic._venn_abers_pass`.

    Widths are the weights of the points, and heights are their weights times means. Isotonic regression is the slope of
    the greatest convex minorant of a path, whose x are cumulative widths and whose y are cumulative heights. An example
    of label 1 and weight 1 is added to the left of all points. Slope i is its fitted value before it moves past point
    i, which is the slope of the minorant's first segment. The minorant is kept as a stack of corners, whose top is the
    left end.
    """

    def turn(a: Any, b: Any, c: Any) -> Any:
        # the cross product of b - a and c - b: positive if the path a, b, c turns left, so that b stays a corner
        return (b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0])

    moving = (-1.0, -1.0)  # the start of the added example, of weight 1 and label 1, which ends at the origin
    corners, end = [moving], (0.0, 0.0)  # of the minorant; from right to left after the reversal
    for i in range(len(widths) + 1):
        if i:  # the first end is the origin
            end = (end[0] + widths[i - 1], end[1] + heights[i - 1])
        while len(corners) > 1 and turn(corners[-2], corners[-1], end) <= 0:
            corners.pop()
        corners.append(end)
    corners.reverse()
    for i in range(len(widths)):
        (x0, y0), (x1, y1) = corners[-1], corners[-2]
        slopes[i] = (y1 - y0) / (x1 - x0)  # of the first segment, which begins with the added example
        moving = (moving[0] + widths[i], moving[1] + heights[i])  # the example moves past point i
        if (moving[1] - y0) * (x1 - x0) >= (y1 - y0) * (moving[0] - x0):
            continue  # not below the first segment, so the minorant stays
        corners.pop()  # the old start of the added example
        while len(corners) > 1 and turn(moving, corners[-1], corners[-2]) <= 0:
            corners.pop()
        corners.append(moving)
