#pragma once
// A walk over the keys of a client's namespace, on all servers of a view, a page a call.
//
// A key that is there from the first page to the last comes at least once, and possibly more than
// once; one that is put or removed meanwhile comes or not. That holds while every server answers
// (failures() names those that did not) and the view stays the same (view_changed()).
// Bound: one page in memory.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "mp_sdk/options.h"

namespace ems {

class Client;

struct KeyInfo {
  std::string key;
  uint64_t bytes = 0;            // of the value
  Tier tier = Tier::kUnknown;    // kDram also when it is on the SSD as well
  std::optional<Duration> age;   // since it came to its server's DRAM; of those that are there
  std::optional<Duration> idle;  // since it was used, likewise
};

struct ScanOptions {
  std::string_view prefix{};  // of the keys that are wanted; up to 512 bytes
  uint32_t keys_max = 1024;   // of one page, which may have a few more: 1 to 1024
  Duration timeout{0};        // of one page; 0: the client's default
};

// Threading: one thread (holder).
class KeyScan final {
 public:
  struct Failure {
    std::string server;
    Status status;
  };
  // Asks nobody yet. `client` must outlive the scan.
  // Errors: kInvalidArgument  a prefix or number of keys out of range
  static Result<KeyScan> Begin(Client* client, const ScanOptions& options = {});
  KeyScan(KeyScan&&) noexcept;
  KeyScan& operator=(KeyScan&&) noexcept;
  ~KeyScan();

  // The next keys, in no order; may be empty before done(). A server that does not answer as it
  // should, or not in time, is left out from then on. Cost: a round trip or more to one server,
  // which looks at some thousand entries of its index for each; keys that are on its SSD alone are
  // read from there. Blocks for the timeout at most.
  std::vector<KeyInfo> Next();
  bool done() const;
  // Servers whose keys are missing, all or some, and why: kUnimplemented  an older version, which
  // has no Scan    kInvalidArgument  it was restarted meanwhile    others  as Client's
  const std::vector<Failure>& failures() const;
  // Keys may have moved to a server that had been walked.
  bool view_changed() const;

 private:
  struct State;
  explicit KeyScan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ems
