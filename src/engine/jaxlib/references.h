// Python references that outlive the GIL. Arrays, views and executables are dropped by whoever held them last, on
// threads that must not wait for the GIL: their references go to a queue, which the next call into Python or a thread
// of its own empties within limits::kDropDelay.
//
// Include this in .cc files only: it brings Python.h.
#pragma once

#include "engine/python_embed.h"

namespace parkway::engine {

// Gives up one reference, at once when this thread holds the GIL, else soon. Any thread.
void DropLater(PyRef reference);
// Drops what is queued. Needs the GIL.
void DropQueued();
// Says that a client may have lost its last user. It and its devices hold each other, so that somebody has to look;
// soon.
void CollectClientsLater();

// A reference whose owner may die without the GIL.
class HeldRef {
 public:
  HeldRef() = default;
  explicit HeldRef(PyRef reference) : reference_(std::move(reference)) {}
  HeldRef(HeldRef&&) = default;
  HeldRef& operator=(HeldRef&& other) noexcept {
    DropLater(std::move(reference_));
    reference_ = std::move(other.reference_);
    return *this;
  }
  ~HeldRef() {
    if (reference_) DropLater(std::move(reference_));
  }
  PyObject* get() const { return reference_.get(); }
  explicit operator bool() const { return static_cast<bool>(reference_); }

 private:
  PyRef reference_;
};

}  // namespace parkway::engine
