#pragma once
// The interface to the store that context caching needs: batches over keys, and threads to run
// calls on. ClientBlockStore implements it with ems::Client.
#include <functional>
#include <span>
#include <vector>

#include "common/status.h"
#include "mp_sdk/client.h"

namespace ems::context {

// Calls mean what those of ems::Client of the same name mean: a result an item in the order of the
// items, which a server handles in that order; options.timeout is the whole call's. Threading:
// implementations are thread-safe.
class BlockStore {
 public:
  virtual ~BlockStore() = default;
  virtual std::vector<Result<bool>> MultiExists(std::span<const KeyItem> items,
                                                const GetOptions& options) = 0;
  virtual std::vector<Result<uint64_t>> MultiGet(std::span<const GetItem> items,
                                                 const GetOptions& options) = 0;
  virtual std::vector<Status> MultiGetRange(std::span<const RangeItem> items,
                                            const GetOptions& options) = 0;
  virtual std::vector<Status> MultiPut(std::span<const PutItem> items,
                                       const PutOptions& options) = 0;
  // Runs `work` on another thread, soon. False, and nothing done, when too much waits.
  [[nodiscard]] virtual bool Submit(std::function<void()>&& work) = 0;
};

// Threading: thread-safe.
class ClientBlockStore final : public BlockStore {
 public:
  // `client` must outlive this.
  explicit ClientBlockStore(Client* client) : client_(client) {}
  std::vector<Result<bool>> MultiExists(std::span<const KeyItem> items,
                                        const GetOptions& options) override {
    return client_->MultiExists(items, options);
  }
  std::vector<Result<uint64_t>> MultiGet(std::span<const GetItem> items,
                                         const GetOptions& options) override {
    return client_->MultiGet(items, options);
  }
  std::vector<Status> MultiGetRange(std::span<const RangeItem> items,
                                    const GetOptions& options) override {
    return client_->MultiGetRange(items, options);
  }
  std::vector<Status> MultiPut(std::span<const PutItem> items, const PutOptions& options) override {
    return client_->MultiPut(items, options);
  }
  bool Submit(std::function<void()>&& work) override { return client_->Submit(std::move(work)); }

 private:
  Client* client_;
};

}  // namespace ems::context
