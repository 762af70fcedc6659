#pragma once
// Where the rows of the controller outlive its process: RocksDB in its data_dir (durable_rows.h),
// or etcd for several controllers (etcd/etcd_rows.h).
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace ems::controller {

// The row with the cluster's id, among those of the cluster.
inline constexpr std::string_view kClusterKey = "meta/cluster";

// Rows to write and rows to drop, together or not at all.
struct RowChange {
  std::vector<std::pair<std::string, std::string>> put;  // key, value
  std::vector<std::string> drop;
};

// Threading: one thread (the loop of what it stores).
class RowStore {
 public:
  using TakeRow = std::function<Status(std::string_view key, std::string_view value)>;

  virtual ~RowStore() = default;

  // Each row in the order of the keys. An error of `take` ends it and counts as damage.
  // Errors: kDataLoss; of etcd also kUnavailable
  virtual Status ForEach(const TakeRow& take) = 0;

  // Durable when it returns OK. When it does not, a restart may or may not find it; without one it
  // has not happened. Cost: blocks, for one fsync, or for as long as etcd may take.
  // Errors: kUnavailable
  virtual Status Write(const RowChange& change) = 0;

  // kDataLoss, naming the store and what an operator may do.
  virtual Status Damaged(std::string_view what) const = 0;
};

}  // namespace ems::controller
