/* Private to engine/cpu: the arithmetic a file is compiled for. Each file of engine/cpu/ops is compiled three times,
 * with
 * CEDAR_ARITH_WIDE (double), CEDAR_ARITH_F32 (float) or CEDAR_ARITH_BF16 (float, rounded to bf16 where the vendor's
 * reference rounds); OP(name) gives each its own symbols. */
#ifndef CEDAR_ENGINE_CPU_ARITH_H
#define CEDAR_ENGINE_CPU_ARITH_H

#include <math.h>

#include "engine/quant.h"

#if defined CEDAR_ARITH_WIDE
typedef double real;
#define OP(name) cedar_wide_##name
static inline real rb(real x) { return x; }
#elif defined CEDAR_ARITH_F32
typedef float real;
#define OP(name) cedar_f32_##name
static inline real rb(real x) { return x; }
#elif defined CEDAR_ARITH_BF16
typedef float real;
#define OP(name) cedar_bf16_##name
static inline real rb(real x) { return cedar_bf16_round(x); }   /* "round bf16": a rounding point of the reference */
#else
#error "compile files of engine/cpu/ops with CEDAR_ARITH_WIDE, _F32 or _BF16"
#endif

#if defined CEDAR_ARITH_WIDE
static inline real real_exp(real x) { return exp(x); }
static inline real real_sqrt(real x) { return sqrt(x); }
static inline real real_log1p(real x) { return log1p(x); }
static inline real real_abs(real x) { return fabs(x); }
#else
static inline real real_exp(real x) { return expf(x); }
static inline real real_sqrt(real x) { return sqrtf(x); }
static inline real real_log1p(real x) { return log1pf(x); }
static inline real real_abs(real x) { return fabsf(x); }
#endif

static inline real sigmoid(real x) { return 1 / (1 + real_exp(-x)); }

#endif
