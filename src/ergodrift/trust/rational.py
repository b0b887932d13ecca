"""Rational spectra with one pole singled out, and Whittle's likelihood of them, for many models at a time.

A row of parameters (z, place, bend, turn) is one spectrum, up to its scale. The modulus of the slowest pole is
1 - exp(-|z|), so that |z| is the logarithm of the relaxation time; negative z stand for a negative pole. `place` says
where the second pole is: on the real line, below the first in size, or, in a pair, at which angle. `bend` and `turn`
are the partial autocorrelations of two zeros. On a band of frequencies the zeros live on the band stretched to [0, pi],
so that they bend the spectrum there as far as anything outside the band does. A `free` mask says which of the four are
fitted; the others stay at 0, where there is no second pole and there are no zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ergodrift.trust.spectrum import Spectrum

VISIBLE = 1 / 2  # part of the power at its own frequency that a mode must make up to count
RESOLVED = np.array([4, 8, 12, 16])  # ordinates off its frequency where that is looked at: no slower mode is seen
STEEP = 40.0  # how steeply the deviance rises below that
WIDEST = np.array([1.0, 1.5, 1.5, 1.5])  # of a step
FARTHEST = np.array([[30.0, 3.5, 5.0, 5.0], [30.0, 12.0, 5.0, 5.0]])  # of parameters, of a pair: where tanh is flat
# Where a search starts: second poles over the first, angles of a pair over pi, zeros.
SHARES = np.arctanh([-0.9, -0.5, 0.0, 0.4, 0.7, 0.9, 0.97])
ANGLES = np.array([0.0003, 0.001, 0.003, 0.01, 0.03, 0.08, 0.18, 0.35, 0.55, 0.8, 0.95])
ONE_ZERO = [(-0.98, 0), (-0.9, 0), (-0.6, 0), (0.6, 0), (0.95, 0)]
TWO_ZEROS = [(0, -0.6), (0, 0.5), (0, 0.9), (0.6, 0.6), (0.9, 0.9), (-0.6, -0.9), (-0.6, 0.6), (-0.9, -0.6),
             (-0.9, 0.9), (-0.95, 0.5)]  # fmt: skip
BENDS = np.arctanh([(0, 0), *ONE_ZERO, *TWO_ZEROS])
COUNTS = (1, 1 + len(ONE_ZERO), len(BENDS))  # how many of these have 0, at most 1, at most 2 zeros
PROMISING = 12  # starts for each z that are looked at closely


def size_of(z: np.ndarray) -> np.ndarray:
    """lambda of z."""
    return np.sign(z) * -np.expm1(-np.abs(z))


def _square(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|1 + a e^{iw} + b e^{2iw}|^2 with c = cos w; for complex w its continuation."""
    return (1 - b) ** 2 + a**2 + 2 * a * (1 + b) * c + 4 * b * c**2


class Band(NamedTuple):
    """The frequencies [low, high] of a spectrum."""

    spectrum: Spectrum
    low: float
    high: float
    n: int  # samples

    def stretched(self, frequency: np.ndarray) -> np.ndarray:
        """cos of the frequency, stretched so that it runs from 1 to -1 over the band."""
        low, high = np.cos(self.low), np.cos(self.high)
        return 1 - 2 * (low - np.cos(frequency)) / (low - high)

    def deviance(self, log: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """-2 log-likelihood of log spectra (rows, bins), their scale fitted; and power over spectrum, (rows, bins)."""
        power, _, size, _ = self.spectrum
        middle, total = log.mean(axis=1), size.sum()
        ratio = power * np.exp(np.minimum(middle[:, None] - log, 500))
        scale = ratio @ size / total
        return 2 * (log @ size + total * (np.log(scale) - middle)), ratio / scale[:, None]


def angle(v: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """The frequency of the slowest mode."""
    return np.where(pair, np.pi / (1 + np.exp(-v[:, 1])), np.where(v[:, 0] < 0, np.pi, 0.0))


def log_spectrum(v: np.ndarray, pair: np.ndarray, band: Band, frequency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log f (rows, frequencies) and its derivatives by the parameters (rows, 4, frequencies)."""
    z, place = v[:, 0], v[:, 1]
    lam, keeps = size_of(z), np.exp(-np.abs(z))
    # |A|^2 = s^2 + m x + b x^2 in x = 2 - 2 cos omega, in a form that loses no digits where poles are close to 1.
    share = np.tanh(place)
    mu = lam * share
    s, m, b = (1 - lam) * (1 - mu), lam * (1 - mu) ** 2 + mu * (1 - lam) ** 2, lam * mu
    by_lam = np.stack([mu - 1, (1 - mu) ** 2 - 2 * mu * (1 - lam), mu])
    by_mu = np.stack([lam - 1, (1 - lam) ** 2 - 2 * lam * (1 - mu), lam])
    real = (s, m, b, (by_lam + share * by_mu) * keeps, by_mu * lam * (1 - share**2))
    theta = np.pi / (1 + np.exp(-place))
    y = 4 * np.sin(theta / 2) ** 2
    s, m, b = (1 - lam) ** 2 + lam * y, 2 * lam * ((1 - lam) ** 2 - y * (1 + lam**2) / 2), lam**2
    by_lam = np.stack([y - 2 * (1 - lam), 2 * (1 - lam) ** 2 - y * (1 + lam**2) - 4 * lam * (1 - lam) - 2 * y * lam**2,
                       2 * lam])  # fmt: skip
    by_y = np.stack([lam, -lam * (1 + lam**2), 0 * lam])
    two = (s, m, b, by_lam * keeps, by_y * (2 * np.sin(theta) * theta * (1 - theta / np.pi)))
    s, m, b, by_z, by_place = (np.where(pair, first, second) for first, second in zip(two, real, strict=True))

    x = 4 * np.sin(frequency / 2) ** 2
    poles = (s**2)[:, None] + m[:, None] * x + b[:, None] * x**2 + 1e-300
    slopes = [
        -((2 * s * by[0])[:, None] + by[1][:, None] * x + by[2][:, None] * x**2) / poles for by in (by_z, by_place)
    ]
    d = band.stretched(frequency)
    bend, turn = np.tanh(v[:, 2:3]), np.tanh(v[:, 3:4])
    a = bend * (1 + turn)
    zeros = _square(d, a, turn) + 1e-12
    by_a = 2 * a + 2 * (1 + turn) * d
    by_turn = 2 * (turn - 1) + 2 * a * d + 4 * d**2 + by_a * bend
    slopes += [by_a * (1 + turn) * (1 - bend**2) / zeros, by_turn * (1 - turn**2) / zeros]
    return np.log(zeros) - np.log(poles), np.stack(slopes, axis=1)


def hidden(v: np.ndarray, pair: np.ndarray, band: Band) -> np.ndarray:
    """By how much, in logarithms, a mode is too faint or its peak too narrow to be seen; 0 where it is seen.

    Its part of the power near its own frequency is to reach `VISIBLE`. By partial fractions the weight of a pole is
    what is left of f without it, at the pole.
    """
    lam, at = size_of(v[:, 0]), angle(v, pair)
    pole = at + 1j * np.log(np.maximum(np.abs(lam), 1e-3))
    near = at + np.where(at > np.pi / 2, -1, 1) * (2 * np.pi / band.n * RESOLVED)[:, None]
    mu = lam * np.where(pair, np.exp(-1j * at), np.tanh(v[:, 1]))  # the other pole
    bend, turn = np.tanh(v[:, 2]), np.tanh(v[:, 3])

    def rest(w: np.ndarray) -> np.ndarray:
        """f at w without the pole."""
        other = (1 - mu * np.exp(-1j * w)) * (1 - np.conj(mu) * np.exp(1j * w))
        return np.abs(_square(band.stretched(w), bend * (1 + turn), turn)) / np.maximum(np.abs(other), 1e-12)

    mode = 1 / np.square(np.abs(1 - lam * np.exp(1j * np.where(pair, at, 0) - 1j * near)))
    part = rest(pole) * mode.sum(axis=0) / np.sum(rest(near) * mode, axis=0)
    # A peak narrower than the bin that it stands in would not be seen there.
    width = np.interp(at, band.spectrum.frequency, band.spectrum.size) * 2 * np.pi / band.n
    narrow = np.abs(v[:, 0]) + np.log(width / 2)
    return np.maximum(np.log(VISIBLE) - np.log(part + 1e-12), 0.0) + np.maximum(narrow, 0.0)


def starts(z: np.ndarray, places: np.ndarray, pair: bool, band: Band) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each z the best of a grid of the other parameters, (len(z), 4), and its deviance: with 0, 1 and 2 zeros."""
    power, frequency, size, _ = band.spectrum
    poles = np.zeros((len(z) * len(places), 4))
    poles[:, 0], poles[:, 1] = np.repeat(z, len(places)), np.tile(places, len(z))
    log, _ = log_spectrum(poles, np.full(len(poles), pair), band, frequency)
    bend, turn = np.tanh(BENDS[:, :1]), np.tanh(BENDS[:, 1:])
    number = np.log(_square(band.stretched(frequency), bend * (1 + turn), turn) + 1e-12)
    total, middle, centre = size.sum(), log.mean(axis=1, keepdims=True), number.mean(axis=1, keepdims=True)
    # f is a product, so that all sums of power over f are one product of matrices.
    scale = (size * power * np.exp(middle - log)) @ np.exp(centre - number).T / total
    grid = 2 * ((log @ size)[:, None] + number @ size + total * (np.log(scale) - middle - centre.T))
    found = []
    for count in COUNTS:
        deviance = grid[:, :count].reshape(len(z), -1)
        best = np.argsort(deviance, axis=1)[:, :PROMISING]
        rows = poles.reshape(len(z), len(places), 4)[np.arange(len(z))[:, None], best // count]
        rows[..., 2:] = BENDS[best % count]
        faint = hidden(rows.reshape(-1, 4), np.full(rows[..., 0].size, pair), band).reshape(best.shape)
        deviance = np.take_along_axis(deviance, best, axis=1) + STEEP * faint**2
        first = np.arange(len(z)), deviance.argmin(axis=1)
        found.append((rows[first], deviance[first]))
    return found


def fitted(v: np.ndarray, pair: np.ndarray, free: np.ndarray, band: Band, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows at their least deviance over the free parameters, by Fisher scoring with damping; and the deviance."""
    size, frequency = band.spectrum.size, band.spectrum.frequency
    total, diagonal, top = size.sum(), np.arange(4), np.log(band.n / 3)

    def look(v: np.ndarray) -> tuple[np.ndarray, ...]:
        log, slopes = log_spectrum(v, pair, band, frequency)
        deviance, ratio = band.deviance(log)
        short = hidden(v, pair, band)
        return deviance + STEEP * short**2, ratio, slopes * free[:, :, None], short

    far = FARTHEST[pair.astype(int)]
    now = look(v)
    damp = np.full(len(v), 1e-3)
    for _ in range(steps):
        deviance, ratio, slopes, short = now
        centred = slopes - (slopes @ size)[:, :, None] / total
        weighted = centred * size
        score = (weighted @ (ratio - 1)[:, :, None])[:, :, 0]
        weight = weighted @ centred.transpose(0, 2, 1)
        if short.any():
            by = np.stack([hidden(v + 1e-5 * e, pair, band) - short for e in np.eye(4)], -1) / 1e-5 * free
            score = score - STEEP * short[:, None] * by
            weight = weight + STEEP * by[:, :, None] * by[:, None, :]
        weight[:, diagonal, diagonal] += damp[:, None] * weight[:, diagonal, diagonal] + 1e-6 + (1 - free)
        move = np.clip(np.linalg.solve(weight, score[..., None])[..., 0], -WIDEST, WIDEST)
        ahead = np.clip(v + move * free, -far, far)
        ahead[:, 0] = np.clip(np.where(pair, np.maximum(ahead[:, 0], 1e-2), ahead[:, 0]), -top, top)
        then = look(ahead)
        better = then[0] < deviance
        moving = np.where(better, deviance - then[0] > 0.02, damp < 1e3)
        v = np.where(better[:, None], ahead, v)
        now = tuple(np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(then, now, strict=True))
        damp = np.where(better, damp / 5, damp * 6)
        if not moving.any():
            break
    return v, now[0]
