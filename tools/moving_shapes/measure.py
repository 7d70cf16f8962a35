"""What is seen in a clip, from its pixels alone, and how much of a scene's label it obeys."""
import numpy as np
from scipy import ndimage

import moving_shapes as world


def foreground(video):
    """Masks [T, H, W] of what is neither background nor shadow, and the background colour of each row [H, 3].
    video: float [T, H, W, 3] in [0, 1].  A shadow is the background times something in [.6, 1]."""
    rows = np.median(np.concatenate([video[:, :, :10], video[:, :, -10:]], 2), (0, 2))
    rows = ndimage.median_filter(rows, (9, 1))
    bg = rows[None, :, None]
    k = np.clip((video * bg).sum(-1) / ((bg ** 2).sum(-1) + 1e-6), .62, 1.06)[..., None]
    mask = np.abs(video - k * bg).max(-1) > .11
    return np.stack([ndimage.binary_opening(m, iterations=1) for m in mask]), rows


def nearest(color, palette):
    """Name of the closest palette entry."""
    return min(palette, key=lambda n: sum((a - b) ** 2 for a, b in zip(palette[n], color)))


def outline_shape(mask):
    """Shape name from the harmonics of the outline's radius over angle (3, 4 or 5 corners, none, or a hole)."""
    ys, xs = np.nonzero(mask)
    if len(ys) < 20:
        return "none"
    cy, cx = ys.mean(), xs.mean()
    r, a = np.hypot(ys - cy, xs - cx), np.arctan2(ys - cy, xs - cx)
    bins = np.full(60, np.nan)
    idx = ((a + np.pi) / (2 * np.pi) * 60).astype(int) % 60
    for i in range(60):
        if (idx == i).any():
            bins[i] = r[idx == i].max()
    good = ~np.isnan(bins)
    bins = np.interp(np.arange(60), np.nonzero(good)[0], bins[good], period=60)
    mean = bins.mean()
    yy, xx = np.indices(mask.shape)
    core = np.hypot(yy - cy, xx - cx) < .3 * mean
    if mask[core].mean() < .5:
        return "ring"
    h = np.abs(np.fft.rfft(bins))[[3, 4, 5]] / 60 / mean
    return "circle" if h.max() < .033 else ("triangle", "square", "star")[int(h.argmax())]


def motion_name(masks):
    """Motion of a single object from its centroid, area and mask over time."""
    ok = [i for i in range(len(masks)) if masks[i].sum() > 15]
    if len(ok) < len(masks) * .6:
        return "none", (0, 0)
    half = min(masks.shape[1:]) / 2
    c = np.array([ndimage.center_of_mass(masks[i]) for i in ok]) / half
    area = np.array([masks[i].sum() for i in ok], float)
    dy, dx = c[-2:].mean(0) - c[:2].mean(0)
    ry, rx = np.ptp(c, 0)
    smooth = ndimage.uniform_filter1d(c, 3, axis=0)
    travel = np.abs(np.diff(smooth, axis=0)).sum(0)
    drift = (float(dx), float(dy))
    if rx > .45 and ry > .45:
        return "orbit", drift
    if rx > .45 and abs(dx) > .7 * rx:
        return ("right" if dx > 0 else "left"), drift
    if ry > .3 and travel[0] > 1.45 * max(abs(smooth[-1, 0] - smooth[0, 0]), .05):
        return "bounce", drift
    if ry > .45 and abs(dy) > .7 * ry:
        return ("down" if dy > 0 else "up"), drift
    ratio = area[-2:].mean() / area[:2].mean()
    if ratio > 1.6 or ratio < 1 / 1.6:
        return ("grow" if ratio > 1 else "shrink"), drift
    change = max((masks[ok[0]] ^ masks[i]).sum() for i in ok) / area[0]
    return ("spin" if change > .2 else "still"), drift


def measure(video):
    """What is seen in a clip: background, colour, shape, motion, number of objects."""
    masks, rows = foreground(video)
    pixels = video[masks]
    color = np.median(pixels, 0) if len(pixels) else np.zeros(3)
    h, w = masks.shape[1:]
    inside = [m[1:-1, 1:-1].sum() * (1 if m[0].sum() + m[-1].sum() + m[:, 0].sum() + m[:, -1].sum() == 0 else .2)
              for m in masks]
    votes = [outline_shape(masks[i]) for i in np.argsort(inside)[-5:]]
    motion, drift = motion_name(masks)
    counts = [(np.bincount(ndimage.label(m)[0].ravel())[1:] > 25).sum() for m in masks]
    present = {n: float((np.abs(pixels - np.array(v)).max(-1) < .17).sum() / max(1, len(pixels)))
               for n, v in world.COLORS.items()}
    palette = {n: np.array(v) * .85 + .075 for n, v in world.BACKGROUNDS.items()}
    return dict(bg=nearest(rows.mean(0), palette), color=nearest(color, world.COLORS), motion=motion, drift=drift,
                shape=max(set(votes), key=votes.count), count=int(np.median(counts)), present=present)


def score(scene, m):
    """Which parts of the label the clip obeys."""
    o, s = scene["objects"], {}
    s["background"] = m["bg"] == scene["bg"]
    if scene["kind"] == "pair":
        s["pair: both colours"] = all(m["present"][x["color"]] > .08 for x in o)
        return s
    s["colour"] = m["color"] == o[0]["color"]
    if scene["kind"] == "group":
        s["group: count"] = m["count"] == len(o)
        return s
    s["shape"], s["motion"] = m["shape"] == o[0]["shape"], m["motion"] == o[0]["motion"]
    if o[0]["motion"] in ("left", "right", "up", "down"):
        dx, dy = m["drift"]
        way = ("right" if dx > 0 else "left") if abs(dx) > abs(dy) else ("down" if dy > 0 else "up")
        s["direction"] = way == o[0]["motion"] and max(abs(dx), abs(dy)) > .35
    return s
