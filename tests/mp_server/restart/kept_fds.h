#pragma once
// A store of descriptors that outlives the servers of a test, in their process.
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "mp_server/restart/fd_store.h"

namespace ems::server {

struct KeptFds {
  std::vector<fabric::Fd> fds;
  bool refuses = false;
  int taken = 0;

  std::vector<fabric::Fd> Copies() const {
    std::vector<fabric::Fd> copies;
    for (const fabric::Fd& fd : fds) copies.emplace_back(::dup(fd.get()));
    return copies;
  }
};

class KeptFdStore final : public FdStore {
 public:
  explicit KeptFdStore(KeptFds* kept) : kept_(*kept) {}
  std::vector<fabric::Fd> Take() override {
    ++kept_.taken;
    return std::exchange(kept_.fds, {});
  }
  Status Put(std::span<const int> fds) override {
    if (kept_.refuses) return Error(StatusCode::kUnavailable, "no room");
    kept_.fds.clear();
    for (const int fd : fds) kept_.fds.emplace_back(::dup(fd));
    return OkStatus();
  }
  std::string_view name() const override { return "test"; }

 private:
  KeptFds& kept_;
};

}  // namespace ems::server
