#include "base/random.h"

#include <glog/logging.h>
#include <sys/random.h>

#include <cerrno>

namespace parkway {
namespace {

void Fill(void* out, size_t n) {
  auto* at = static_cast<char*>(out);
  while (n > 0) {
    const ssize_t got = getrandom(at, n, 0);
    // Without randomness every id would be guessable: nothing is safe to go on with.
    PCHECK(got > 0 || errno == EINTR) << "getrandom";
    if (got <= 0) continue;
    at += got;
    n -= static_cast<size_t>(got);
  }
}

}  // namespace

uint64_t RandomUint64() {
  uint64_t number = 0;
  while (number == 0) Fill(&number, sizeof(number));
  return number;
}

std::string RandomBytes(size_t n) {
  std::string bytes(n, '\0');
  Fill(bytes.data(), n);
  return bytes;
}

}  // namespace parkway
