// Element types, with the numbers that the client's wire gives them (DTypeProto.Kind), and what they are called
// elsewhere.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace parkway::ifrt {

enum class DType : int {
  kUnspecified = 0,
  kPred = 1,
  kS1 = 32,
  kS2 = 26,
  kS4 = 21,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU1 = 33,
  kU2 = 27,
  kU4 = 22,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
  kC64 = 15,
  kC128 = 18,
  kToken = 17,
  kOpaque = 14,
  kF8E3M4 = 29,
  kF8E4M3 = 28,
  kF8E4M3FN = 20,
  kF8E4M3B11FNUZ = 23,
  kF8E4M3FNUZ = 25,
  kF8E5M2 = 19,
  kF8E5M2FNUZ = 24,
  kF8E8M0FNU = 31,
  kF4E2M1FN = 30,
  kF6E2M3FN = 34,
  kF6E3M2FN = 35,
  kString = 99,
};

// The type of that wire number; INVALID_ARGUMENT where there is none, or it is kUnspecified.
absl::StatusOr<DType> DTypeFromNumber(int number);

// Bytes of one element on the wire and in host buffers, where bool and the types below 8 bits take a whole byte.
// 0 for tokens, opaque values and strings: their arrays have no fixed size.
int ByteWidth(DType type);

// XLA's name: "f32", "bf16", "s32", "pred", "f8e4m3fn", "c64"; "string" for strings.
absl::string_view Name(DType type);

// Reads XLA's and StableHLO's names alike, in any case: "s32", "i32", "ui8", "pred", "i1", "f8E4M3FN", "complex<f32>".
absl::StatusOr<DType> ParseDType(absl::string_view name);

}  // namespace parkway::ifrt
