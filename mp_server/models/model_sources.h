#pragma once
// The sources that this server reads models from: opened when first asked for, shared by all
// versions that are in the same place, opened again after a failure.
//
// Invariant: folders of this machine are read below `file_root` alone. Bound: kSourcesMax that
// nobody reads from.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "model_files/format/manifest.h"
#include "model_files/source/weight_source.h"

namespace ems::server {

// Threading: thread-safe.
class ModelSources final {
 public:
  struct Options {
    uint32_t connections_max = 8;
    std::string credentials_file;  // as model::ReadCredentials reads it; empty: none
    std::string file_root;         // folders below it may be sources; empty: none
    std::string ca_file = {};      // certificates that https is checked by; empty: the system's
  };
  explicit ModelSources(Options options) : options_(std::move(options)) {}

  // `stream` 0 or 1: sources that share no connection; of a version that is read twice each has
  // half of the bandwidth. Errors: those of OpenSource and ReadCredentials    kPermissionDenied  a
  // folder that is not below file_root    kCancelled  it was dropped, or Close has been called
  Result<std::shared_ptr<model::WeightSource>> Open(const model::ManifestSource& wanted,
                                                    uint32_t stream);
  // That have come from there by now, over all streams; from 0 again when it is opened again.
  uint64_t BytesRead(const model::ManifestSource& source);
  // After a failure: it is opened again, with the keys that are in the file by then, and the folder
  // that is mounted there by then. Reads that are under way go on.
  void Forget(const model::ManifestSource& source);
  // Ends reads of all of `gone` but those of `wanted`, now, not when a source that stalls gives up.
  void Drop(const std::vector<model::ManifestSource>& gone,
            const std::vector<model::ManifestSource>& wanted);
  // Ends all reads, for good.
  void Close();

 private:
  using Key = std::tuple<std::string, std::string, uint64_t, model::FirstRead, uint32_t>;
  static Key KeyOf(const model::ManifestSource& source, uint32_t stream) {
    return {source.url, source.credentials, source.bytes_per_s_max, source.first_read, stream};
  }
  struct Opened {
    std::shared_ptr<model::WeightSource> source;  // null: forgotten
    std::shared_ptr<StopFlag> stop;               // ends its reads
  };
  struct State {
    std::map<Key, Opened> opened;
    bool closed = false;
  };

  const Options options_;
  Guarded<State> state_;
};

}  // namespace ems::server
