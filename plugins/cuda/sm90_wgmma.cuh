// Operands of warpgroup products of sm_90: an instruction names each of its sums.

#pragma once

#define VIDC_NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VIDC_NAMES_36 VIDC_NAMES_32 ", %32, %33, %34, %35"
#define VIDC_NAMES_64 VIDC_NAMES_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define VIDC_OPERANDS_4(kind, d, i) kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3])
#define VIDC_OPERANDS_8(kind, d, i) VIDC_OPERANDS_4(kind, d, i), VIDC_OPERANDS_4(kind, d, i + 4)
#define VIDC_OPERANDS_32(kind, d) \
  VIDC_OPERANDS_8(kind, d, 0), VIDC_OPERANDS_8(kind, d, 8), \
  VIDC_OPERANDS_8(kind, d, 16), VIDC_OPERANDS_8(kind, d, 24)
#define VIDC_OPERANDS_36(kind, d) VIDC_OPERANDS_32(kind, d), VIDC_OPERANDS_4(kind, d, 32)
#define VIDC_OPERANDS_64(kind, d) \
  VIDC_OPERANDS_32(kind, d), \
  VIDC_OPERANDS_8(kind, d, 32), VIDC_OPERANDS_8(kind, d, 40), \
  VIDC_OPERANDS_8(kind, d, 48), VIDC_OPERANDS_8(kind, d, 56)
