#include "ifrt/dtype.h"

#include <array>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace parkway::ifrt {
namespace {

struct Entry {
  DType type;
  absl::string_view name;
  absl::string_view alias;  // StableHLO's name where it differs
  int bits;
};

constexpr std::array<Entry, 35> kTypes = {{
    {DType::kPred, "pred", "i1", 8},
    {DType::kS1, "s1", "si1", 1},
    {DType::kS2, "s2", "i2", 2},
    {DType::kS4, "s4", "i4", 4},
    {DType::kS8, "s8", "i8", 8},
    {DType::kS16, "s16", "i16", 16},
    {DType::kS32, "s32", "i32", 32},
    {DType::kS64, "s64", "i64", 64},
    {DType::kU1, "u1", "ui1", 1},
    {DType::kU2, "u2", "ui2", 2},
    {DType::kU4, "u4", "ui4", 4},
    {DType::kU8, "u8", "ui8", 8},
    {DType::kU16, "u16", "ui16", 16},
    {DType::kU32, "u32", "ui32", 32},
    {DType::kU64, "u64", "ui64", 64},
    {DType::kF16, "f16", "f16", 16},
    {DType::kF32, "f32", "f32", 32},
    {DType::kF64, "f64", "f64", 64},
    {DType::kBF16, "bf16", "bf16", 16},
    {DType::kC64, "c64", "complex<f32>", 64},
    {DType::kC128, "c128", "complex<f64>", 128},
    {DType::kToken, "token", "!stablehlo.token", 0},
    {DType::kOpaque, "opaque", "opaque", 0},
    {DType::kF8E3M4, "f8e3m4", "f8e3m4", 8},
    {DType::kF8E4M3, "f8e4m3", "f8e4m3", 8},
    {DType::kF8E4M3FN, "f8e4m3fn", "f8e4m3fn", 8},
    {DType::kF8E4M3B11FNUZ, "f8e4m3b11fnuz", "f8e4m3b11fnuz", 8},
    {DType::kF8E4M3FNUZ, "f8e4m3fnuz", "f8e4m3fnuz", 8},
    {DType::kF8E5M2, "f8e5m2", "f8e5m2", 8},
    {DType::kF8E5M2FNUZ, "f8e5m2fnuz", "f8e5m2fnuz", 8},
    {DType::kF8E8M0FNU, "f8e8m0fnu", "f8e8m0fnu", 8},
    {DType::kF4E2M1FN, "f4e2m1fn", "f4e2m1fn", 4},
    {DType::kF6E2M3FN, "f6e2m3fn", "f6e2m3fn", 6},
    {DType::kF6E3M2FN, "f6e3m2fn", "f6e3m2fn", 6},
    {DType::kString, "string", "string", 0},
}};

// Entries by wire number, for the calls on hot paths.
constexpr int kNumbers = 100;
constexpr std::array<Entry, kNumbers> ByNumber() {
  std::array<Entry, kNumbers> table{};
  for (const Entry& entry : kTypes) table[static_cast<int>(entry.type)] = entry;
  return table;
}
constexpr std::array<Entry, kNumbers> kByNumber = ByNumber();

const Entry& Find(DType type) { return kByNumber[static_cast<int>(type)]; }

}  // namespace

absl::StatusOr<DType> DTypeFromNumber(int number) {
  if (number <= 0 || number >= kNumbers || kByNumber[number].name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("element type number ", number, " is none that Parkway knows"));
  }
  return static_cast<DType>(number);
}

int ByteWidth(DType type) { return (Find(type).bits + 7) / 8; }

absl::string_view Name(DType type) { return type == DType::kUnspecified ? "unspecified" : Find(type).name; }

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  for (const Entry& entry : kTypes) {
    if (entry.name == lower || entry.alias == lower) return entry.type;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", name.substr(0, 64), "\" names no element type"));
}

}  // namespace parkway::ifrt
