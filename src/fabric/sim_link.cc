#include <array>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "fabric/link.h"

namespace parkway::fabric {
namespace {

// One end: what has been sent to it, and how it learns of the end of the link.
struct End {
  LinkHandlers handlers;
  std::deque<Frame> inbox;
  bool attached = true;  // its Link exists
  bool closed = false;   // on this side: nothing more is delivered but on_closed
  bool peer_closed = false;
  bool told = false;  // on_closed was called
  bool delivering = false;
  absl::Status why;
};

struct Pair {
  std::array<End, 2> ends;
};

void CloseEnd(Pair& pair, int self, absl::Status why) {
  End& end = pair.ends[self];
  if (end.closed) return;
  end.closed = true;
  end.why = std::move(why);
  end.inbox.clear();
  pair.ends[1 - self].peer_closed = true;
}

// Delivers one message or the end of the link to one end. True when there was one.
bool DeliverOne(Pair& pair, int self, int* messages) {
  End& end = pair.ends[self];
  if (!end.attached || end.told || end.delivering) return false;
  const bool message = !end.closed && !end.inbox.empty();
  if (!message && !end.closed && end.peer_closed) {
    CloseEnd(pair, self, absl::UnavailableError("the peer closed the connection"));
  }
  if (!message && !end.closed) return false;
  end.delivering = true;
  if (message) {
    const Frame frame = std::move(end.inbox.front());
    end.inbox.pop_front();
    ++*messages;
    if (end.handlers.on_message) end.handlers.on_message(*frame);
  } else {
    end.told = true;
    if (end.handlers.on_closed) end.handlers.on_closed(end.why);
  }
  end.delivering = false;
  if (end.told || !end.attached) end.handlers = LinkHandlers();
  return true;
}

class SimLink : public Link {
 public:
  SimLink(std::shared_ptr<Pair> pair, int self) : pair_(std::move(pair)), self_(self) {}
  ~SimLink() override {
    CloseEnd(*pair_, self_, absl::CancelledError("the link was given up"));
    End& end = pair_->ends[self_];
    end.attached = false;
    if (!end.delivering) end.handlers = LinkHandlers();
  }

  void Send(Frame frame) override {
    const size_t size = frame ? frame->size() : 0;
    End& peer = pair_->ends[1 - self_];
    if (size == 0 || size > limits::kMaxFrameBytes) {
      return Close(absl::InvalidArgumentError(absl::StrCat("a message of ", size, " bytes was to be sent")));
    }
    if (pair_->ends[self_].closed || peer.closed) return;
    peer.inbox.push_back(std::move(frame));
  }
  void Close(absl::Status why) override { CloseEnd(*pair_, self_, std::move(why)); }
  // One thread: nothing more can come while it runs.
  void RunReadLoop() override {
    const std::shared_ptr<Pair> pair = pair_;
    int messages = 0;
    while (DeliverOne(*pair, self_, &messages)) {
    }
  }
  std::string peer() const override { return absl::StrCat("sim:", 1 - self_); }

 private:
  const std::shared_ptr<Pair> pair_;
  const int self_;
};

}  // namespace

SimLinkPair MakeSimLinkPair(LinkHandlers a, LinkHandlers b) {
  auto pair = std::make_shared<Pair>();
  pair->ends[0].handlers = std::move(a);
  pair->ends[1].handlers = std::move(b);
  SimLinkPair result;
  result.a = std::make_unique<SimLink>(pair, 0);
  result.b = std::make_unique<SimLink>(pair, 1);
  result.pump = [pair] {
    int messages = 0;
    for (bool any = true; any;) {
      any = false;
      for (int self : {0, 1}) {
        while (DeliverOne(*pair, self, &messages)) any = true;
      }
    }
    return messages;
  };
  return result;
}

}  // namespace parkway::fabric
