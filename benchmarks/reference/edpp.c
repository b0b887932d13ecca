/* EDPP-t (Kim and Lee, algorithm 1) on the fairness problem of section 5, written by hand for one seed.
 *
 * rows: (states, d, n) with labels multiplied in; path: states visited. Fills x, queue, the mean of x_1..x_T and,
 * where LOSS is set, the sum of the losses. Built with REAL = float or double:
 *     gcc -O3 -march=native -ffast-math -shared -fPIC -DREAL=float -DLOSS=0
 */
#include <math.h>

#ifndef REAL
#define REAL double
#endif
#ifndef LOSS
#define LOSS 0
#endif
enum { D = 3 };

void edpp(const REAL *rows, const REAL *covariance, const int *path, long rounds, int n, REAL limit, REAL radius,
          REAL tau_mix, REAL *x, REAL *queue, REAL *mean, double *loss_sum) {
    double sum[D] = {0}, total = 0;
    for (long t = 1; t <= rounds; t++) {
        const REAL *restrict a = rows + (long)path[t - 1] * D * n, *restrict b = a + n, *restrict c = b + n;
        const REAL *cov = covariance + path[t - 1] * D;
        REAL g0 = 0, g1 = 0, g2 = 0, loss = 0;
        const REAL x0 = x[0], x1 = x[1], x2 = x[2];
        for (int i = 0; i < n; i++) {
            REAL margin = x0 * a[i] + x1 * b[i] + x2 * c[i];
            REAL e = sizeof(REAL) == 4 ? expf(margin) : exp(margin);
            REAL wrong = 1 / (1 + e);
            g0 += wrong * a[i];
            g1 += wrong * b[i];
            g2 += wrong * c[i];
#if LOSS
            loss += sizeof(REAL) == 4 ? logf(1 + 1 / e) : log(1 + 1 / e);
#endif
        }
        REAL grad[D] = {-g0 / n, -g1 / n, -g2 / n}, next[D], proximity = tau_mix * t, penalty = sqrt(proximity);
        REAL value = 0, norm = 0, change = 0;
        for (int k = 0; k < D; k++) {
            sum[k] += x[k];
            value += cov[k] * x[k];
            next[k] = x[k] - (penalty * grad[k] + (queue[0] - queue[1]) * cov[k]) / (2 * proximity);
            norm += next[k] * next[k];
        }
        norm = sqrt(norm);
        REAL shrink = norm > radius ? radius / norm : 1;
        for (int k = 0; k < D; k++) {
            change += cov[k] * (next[k] * shrink - x[k]);
            x[k] = next[k] * shrink;
        }
        queue[0] = fmax(queue[0] + value - limit + change, 0);
        queue[1] = fmax(queue[1] - value - limit - change, 0);
        total += loss / n;
    }
    for (int k = 0; k < D; k++) mean[k] = sum[k] / rounds;
    *loss_sum = total;
}
