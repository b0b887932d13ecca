"""What every kernel begins with: functions with JAX's meaning, and sums over the lanes of a seed.

The same text is C++ for a GPU and, with one lane a seed, for a CPU, where the tests run it.
"""

PRELUDE = r"""
#ifdef __CUDACC__
#define FN __device__ __forceinline__
#define TABLE __device__ const
#else
#include <cmath>
#define FN static inline
#define TABLE static const
using namespace std;
struct float4 { float x, y, z, w; };
struct int4 { int x, y, z, w; };
struct uint2 { unsigned x, y; };
FN float4 four_at(const float* p) { return {p[0], p[1], p[2], p[3]}; }
FN int4 four_at(const int* p) { return {p[0], p[1], p[2], p[3]}; }
#endif

FN double larger(double a, double b) { return a > b || a != a ? a : b; }  // a NaN stays one
FN double smaller(double a, double b) { return a < b || a != a ? a : b; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
FN float larger(float a, float b) { float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
FN float smaller(float a, float b) { float c; asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
#else
FN float larger(float a, float b) { return a > b || a != a ? a : b; }
FN float smaller(float a, float b) { return a < b || a != a ? a : b; }
#endif
template <class T> FN T larger(T a, T b) { return a > b ? a : b; }
template <class T> FN T smaller(T a, T b) { return a < b ? a : b; }

FN float divided(float a, float b) { return a / b; }
FN double divided(double a, double b) { return a / b; }
template <class T> FN T divided(T a, T b) { return b == 0 ? (T)-1 : a / b; }
FN float remainder_of(float a, float b) { return fmodf(a, b); }
FN double remainder_of(double a, double b) { return fmod(a, b); }
template <class T> FN T remainder_of(T a, T b) { return b == 0 ? a : a % b; }

FN float power(float a, float b) { return powf(a, b); }
FN double power(double a, double b) { return pow(a, b); }
FN float power(float a, int b) { return powf(a, (float)b); }
FN double power(double a, int b) { return pow(a, (double)b); }
FN float root(float a) { return sqrtf(a); }
FN double root(double a) { return sqrt(a); }
FN float exp_of(float a) { return expf(a); }
FN double exp_of(double a) { return exp(a); }
FN float exp2_of(float a) { return exp2f(a); }
FN double exp2_of(double a) { return exp2(a); }
FN float log_of(float a) { return logf(a); }
FN double log_of(double a) { return log(a); }
FN float log1p_of(float a) { return log1pf(a); }
FN double log1p_of(double a) { return log1p(a); }
FN float logistic_of(float a) { return 1 / (1 + expf(-a)); }
FN double logistic_of(double a) { return 1 / (1 + exp(-a)); }

// Inside loops over rows, in single precision: the device's own instructions, right to about 1e-6.
FN double quick_log(double a) { return log(a); }
FN double quick_log1p(double a) { return log1p(a); }
FN double quick_divided(double a, double b) { return a / b; }
FN double quick_exp(double a) { return exp(a); }
FN double quick_logistic(double a) { return 1 / (1 + exp(-a)); }
#ifdef __CUDACC__
FN float quick_exp(float a) {
  float b;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(b) : "f"(a * 1.4426950408889634f));
  return b;
}
FN float inverse(float a) { float b; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(b) : "f"(a)); return b; }
FN float quick_divided(float a, float b) { return a * inverse(b); }
FN float quick_logistic(float a) { return inverse(1 + quick_exp(-a)); }
FN float quick_log(float a) {
  float b;
  asm("lg2.approx.f32 %0, %1;" : "=f"(b) : "f"(a));
  return b * 0.6931471805599453f;
}
FN float quick_log1p(float a) {
  const float near = a * (1 + a * (-0.5f + a * (0.33333333f + a * (-0.25f + a * 0.2f))));
  return fabsf(a) < 0.0625f ? near : quick_log(1 + a);
}
FN float4 four_at(const float* p) { return __ldg((const float4*)p); }
FN int4 four_at(const int* p) { return __ldg((const int4*)p); }
#else
FN float quick_log(float a) { return logf(a); }
FN float quick_log1p(float a) { return log1pf(a); }
FN float quick_divided(float a, float b) { return a / b; }
FN float quick_exp(float a) { return expf(a); }
FN float quick_logistic(float a) { return 1 / (1 + expf(-a)); }
#endif
template <class T> FN T quick_divided(T a, T b) { return divided(a, b); }

FN float size_of(float a) { return fabsf(a); }
FN double size_of(double a) { return fabs(a); }
template <class T> FN T size_of(T a) { return a < 0 ? -a : a; }
FN float sign_of(float a) { return a > 0 ? 1.0f : a < 0 ? -1.0f : a; }
FN double sign_of(double a) { return a > 0 ? 1.0 : a < 0 ? -1.0 : a; }
template <class T> FN T sign_of(T a) { return a > 0 ? 1 : a < 0 ? -1 : 0; }
template <class T> FN bool finite(T a) { return a - a == 0; }

// Shifts by as many bits as there are, or more, leave nothing, or the sign.
template <class T> struct Bits { typedef unsigned type; };
template <> struct Bits<long long> { typedef unsigned long long type; };
template <> struct Bits<unsigned long long> { typedef unsigned long long type; };
template <class T> FN bool inside(T b) { return (typename Bits<T>::type)b < 8 * sizeof(T); }
template <class T> FN T shifted_left(T a, T b) { return inside(b) ? (T)((typename Bits<T>::type)a << b) : 0; }
template <class T> FN T shifted_right(T a, T b) { return a >> (inside(b) ? b : (T)(8 * sizeof(T) - 1)); }
template <class T> FN T shifted_logical(T a, T b) { return inside(b) ? (T)((typename Bits<T>::type)a >> b) : 0; }
template <class To, class From> FN To as_bits(From a) {
  union { From from; To to; } both;
  both.from = a;
  return both.to;
}
#ifdef __CUDACC__
FN int leading_zeros(int a) { return __clz(a); }
FN unsigned leading_zeros(unsigned a) { return __clz((int)a); }
FN int bits_in(int a) { return __popc(a); }
FN unsigned bits_in(unsigned a) { return __popc(a); }
#else
FN int leading_zeros(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
FN unsigned leading_zeros(unsigned a) { return a ? __builtin_clz(a) : 32; }
FN int bits_in(int a) { return __builtin_popcount((unsigned)a); }
FN unsigned bits_in(unsigned a) { return __builtin_popcount(a); }
#endif

FN uint2 threefry(unsigned k0, unsigned k1, unsigned x, unsigned y) {
  const unsigned keys[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};
  const int turns[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  x += k0;
  y += k1;
#pragma unroll
  for (int i = 0; i < 5; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int turn = turns[i % 2 * 4 + j];
      x += y;
      y = (y << turn | y >> (32 - turn)) ^ x;
    }
    x += keys[(i + 1) % 3];
    y += keys[(i + 2) % 3] + i + 1;
  }
  uint2 out;
  out.x = x;
  out.y = y;
  return out;
}
"""

ON_GPU = r"""
struct Sum { template <class T> static FN T of(T a, T b) { return a + b; } };
struct Prod { template <class T> static FN T of(T a, T b) { return a * b; } };
struct Max { template <class T> static FN T of(T a, T b) { return larger(a, b); } };
struct Min { template <class T> static FN T of(T a, T b) { return smaller(a, b); } };
struct Or { template <class T> static FN T of(T a, T b) { return a || b; } };
struct And { template <class T> static FN T of(T a, T b) { return a && b; } };

// Every lane of a seed gets what all of them have together.
template <class Op, class T> FN T warp_all(T value, unsigned members) {
#pragma unroll
  for (int step = (LANES < 32 ? LANES : 32) / 2; step; step /= 2)
    value = Op::of(value, (T)__shfl_xor_sync(members, value, step));
  return value;
}

template <class Op, class T> FN T across_warps(T value, const double* shared) {
  value = (T)shared[threadIdx.x % (LANES / 32)];
#pragma unroll
  for (int step = LANES / 64; step; step /= 2) value = Op::of(value, (T)__shfl_xor_sync(0xffffffffu, value, step));
  return value;
}
"""
