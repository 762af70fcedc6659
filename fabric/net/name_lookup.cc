#include "fabric/net/name_lookup.h"

#include <fmt/format.h>
#include <netdb.h>

#include <condition_variable>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems::fabric {
namespace {

// Blocks for as long as the resolver does; of a number it does not.
Result<SocketAddresses> AskResolver(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  auto found = std::make_shared<std::vector<SocketAddress>>();
  for (const addrinfo* at = error == 0 ? list : nullptr; at != nullptr; at = at->ai_next) {
    SocketAddress& one = found->emplace_back();
    std::memcpy(&one.storage, at->ai_addr, at->ai_addrlen);
    one.bytes = at->ai_addrlen;
  }
  if (!found->empty()) return SocketAddresses(std::move(found));
  return Error(StatusCode::kUnavailable, "cannot resolve {}:{}: {}", host, port,
               error == 0 ? "it has no address" : ::gai_strerror(error));
}

}  // namespace

struct NameLookup::State {
  struct Name {
    SocketAddresses found;  // null: not yet
    TimePoint asked_at;
    bool under_way = false;
    uint64_t ended = 0;  // lookups
    Status failure;      // of the last one that failed
    TimePoint failure_asked_at;
  };
  struct Names {
    std::unordered_map<std::string, Name> by_name;  // "host:port"
    std::unordered_map<std::string, Thread> lookups;
    std::vector<Thread> ended;  // to be joined: they do nothing any more

    // Whether it is looked up, or may be at once.
    bool HasPlace(const std::string& key) const {
      if (lookups.size() < kLookupsMax) return true;
      const auto at = by_name.find(key);
      return at != by_name.end() && at->second.under_way;
    }
  };

  void LookUp(const std::string& key, const std::string& host, uint16_t port, TimePoint now) {
    Result<SocketAddresses> found = AskResolver(host, port, 0);
    auto locked = names.Lock();
    Name& name = locked->by_name[key];
    name.under_way = false;
    ++name.ended;
    if (found.ok()) {
      name.found = *std::move(found);
      name.asked_at = now;
    } else {
      name.failure = found.status();
      name.failure_asked_at = now;
    }
    const auto self = locked->lookups.find(key);
    locked->ended.push_back(std::move(self->second));
    locked->lookups.erase(self);
    ended.notify_all();
  }

  std::condition_variable ended;
  Guarded<Names> names;  // its threads end first
};

NameLookup::NameLookup(const Clock& clock) : clock_(clock), state_(std::make_unique<State>()) {}

NameLookup::~NameLookup() {
  auto names = state_->names.Lock();
  names.Wait(state_->ended, [](const State::Names& all) { return all.lookups.empty(); });
}

void NameLookup::Finish(Duration patience) {
  std::vector<Thread> ended;
  auto names = state_->names.Lock();
  (void)names.WaitFor(state_->ended, patience,
                      [](const State::Names& all) { return all.lookups.empty(); });
  ended.swap(names->ended);
  names.Unlock();
}

NameLookup& NameLookup::Shared() {
  struct Holder {
    ~Holder() { names->Finish(kExitPatience); }
    NameLookup* const names = std::make_unique<NameLookup>().release();
  };
  static const Holder holder;
  return *holder.names;
}

Result<SocketAddresses> NameLookup::Find(const std::string& host, uint16_t port, Duration timeout,
                                         TimePoint since) {
  auto number = AskResolver(host, port, AI_NUMERICHOST | AI_NUMERICSERV);
  if (number.ok()) return number;
  const std::string key = fmt::format("{}:{}", host, port);
  const TimePoint now = clock_.Now();
  const Deadline deadline = Deadline::After(timeout);
  std::vector<Thread> ended;  // joined without the lock
  auto names = state_->names.Lock();
  ended.swap(names->ended);
  if (names->by_name.size() >= kNamesMax && !names->by_name.contains(key))
    std::erase_if(names->by_name, [](const auto& entry) { return !entry.second.under_way; });
  // A name that is not known waits for a place.
  const auto may_begin = [&](const State::Names& all) { return all.HasPlace(key); };
  if (names->by_name[key].found == nullptr && !names.WaitFor(state_->ended, timeout, may_begin)) {
    return Error(StatusCode::kResourceExhausted,
                 "cannot resolve {}: {} other names are not answered", key, kLookupsMax);
  }
  State::Name* name = &names->by_name[key];
  const bool failed = name->found == nullptr && !name->failure.ok();
  if (failed && name->failure_asked_at >= since) return name->failure;
  const bool fresh = name->found != nullptr && now - name->asked_at < kFreshFor;
  if (!fresh && !name->under_way && names->lookups.size() < kLookupsMax) {
    name->under_way = true;
    names->lookups.emplace(key, Thread("ems-names", [state = state_.get(), key, host, port, now] {
                             state->LookUp(key, host, port, now);
                           }));
  }
  if (name->found != nullptr) return name->found;
  const uint64_t before = name->ended;
  const auto answered = [&](const State::Names& all) {
    const auto at = all.by_name.find(key);
    return at != all.by_name.end() && at->second.ended != before;
  };
  if (!names.WaitFor(state_->ended, deadline.Remaining(), answered))
    return Error(StatusCode::kDeadlineExceeded, "cannot resolve {}: no answer in time", key);
  name = &names->by_name[key];
  if (name->found == nullptr) return name->failure;
  return name->found;
}

}  // namespace ems::fabric
