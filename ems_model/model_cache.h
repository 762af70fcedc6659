#pragma once
// ems::model::ModelCache: versions of models in the pool. Adds them, says what is there, has them
// prefetched, loads them.
//
// A version is loaded while it is being prefetched, block by block as they come, and also when the
// pool is down (LoadOptions::fallback_to_source): then from its source. To switch an engine to
// another version, load that one: it disturbs nobody who uses the old one.
//
// Errors of all calls, beside those named at each:
//   kNotFound  no such model or version    kInvalidArgument  a name that cannot be
//   kUnavailable  the controller cannot be reached    kDeadlineExceeded  the call's time is over
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/status.h"
#include "ems_model/load_target.h"
#include "ems_model/manifest_maker.h"
#include "ems_model/model_info.h"
#include "ems_model/model_loader.h"
#include "ems_model/model_name.h"
#include "model_files/source/weight_source.h"
#include "mp_sdk/options.h"

namespace ems::model {

struct ModelCacheOptions {
  std::string controller = "127.0.0.1:7400";
  // The one that is meant; kNoCluster: the first one that answers. Others are refused from then on,
  // for as long as the cache lives: kFailedPrecondition.
  ClusterId cluster = kNoCluster;
  std::string name_space = "models";  // of versions that are added; made when it is missing
  TransportChoice transport = TransportChoice::kAuto;
  uint32_t connections_per_server_max = 8;
  // For this process's own reads of sources: Add, and Load without the pool.
  SourceCredentials source_credentials{};
  std::string source_ca_file{};  // https: certificates to trust instead of the system's
  // How long loads and prefetches wait for a controller that cannot be reached, and loads for the
  // pool's first view and the namespace.
  Duration start_timeout = std::chrono::seconds(5);
  std::string shm_token{};  // as ClientOptions'
};

struct CheckResult {
  ModelInfo info;
  uint64_t dram_bytes = 0, ssd_bytes = 0;  // on the SSD alone
  uint64_t dram_blocks = 0, ssd_blocks = 0;
  // Not there, or their digest is not known: a job has to bring them.
  uint64_t absent_bytes = 0, absent_blocks = 0;
  // Those that other versions of the model have, too (the eight newest are looked at), wherever
  // they are: stored once for all of them.
  uint64_t shared_bytes = 0, shared_blocks = 0;
  // Their servers did not answer in time.
  uint64_t unreachable_bytes = 0, unreachable_blocks = 0;
  // Whose first read nothing protects but TCP's sum: it was added with SourceVerify::kNever.
  uint64_t unprotected_files = 0;
};

struct PrefetchProgress {
  ModelInfo info;
  double bytes_per_s = 0;             // lately
  std::optional<Duration> time_left;  // at that rate
};

// One version, opened for several loads: its manifest, headers and digests are asked for once, so a
// load of one more tensor costs little beside its bytes. From ModelCache::Open, which must outlive
// it.
// Threading: one thread at a time.
class OpenModel final {
 public:
  ~OpenModel();
  OpenModel(const OpenModel&) = delete;
  OpenModel& operator=(const OpenModel&) = delete;

  const ModelInfo& info() const;  // as it was when it was opened
  const Manifest& manifest() const;
  // Errors and cost: as ModelLoader::Load
  Result<LoadStats> Load(LoadTarget* target, Deadline deadline);

 private:
  friend class ModelCache;
  struct Impl;
  explicit OpenModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Threading: thread-safe. Calls work on the caller's thread; a load has threads of its own.
class ModelCache final {
 public:
  // Nothing is connected yet.
  explicit ModelCache(ModelCacheOptions options);
  ~ModelCache();
  ModelCache(const ModelCache&) = delete;
  ModelCache& operator=(const ModelCache&) = delete;

  // kNoCluster: none was meant, and none has answered yet.
  ClusterId cluster() const;

  // Makes a version of the files that `url` lists now (see source/source_url.h). The same files
  // again: what is there, unchanged; AddOptions::verify counts while nobody has used, prefetched or
  // pinned it since it was added. `name` needs a version. Nothing is read but headers.
  // Errors: kAlreadyExists  that version has other files, or is to be verified always and may have
  //   been read once    those of MakeManifest and OpenSource
  Result<ModelInfo> Add(const ModelName& name, const std::string& url, const AddOptions& options,
                        Deadline deadline);
  // In the order in which they were added.
  Result<std::vector<ModelInfo>> List(Deadline deadline);
  Result<ModelInfo> Get(const ModelName& name, Deadline deadline);
  Result<Manifest> GetManifest(const ModelName& name, Deadline deadline);
  // How much of a version is in the pool. Cost: one round trip a server for each 16,384 blocks.
  Result<CheckResult> Check(const ModelName& name, Deadline deadline);

  // Begins a job that brings the version into the DRAM of the servers, or joins the one that is
  // running. `priority`: 0 to 1000, higher ones first. `job_timeout`: when the job ends in any
  // case, 1 s to 24 h from now; zero: after an hour, or, of one that is running, as it is.
  Result<ModelInfo> Prefetch(const ModelName& name, uint32_t priority, Deadline deadline,
                             Duration job_timeout = Duration(0));
  // How the last job gets on. Rate and time come from successive calls.
  Result<PrefetchProgress> Progress(const ModelName& name, Deadline deadline);
  // Waits for the end of the job that is running or was the last. `on_progress` (may be empty) is
  // called on the caller's thread every 200 ms or so. `stop` (may be null), once set, ends the wait
  // as soon, not the job. Errors: that of the job, which names each server that has failed
  //   kCancelled  the job, or the wait
  //   kFailedPrecondition  there is no job
  Result<PrefetchProgress> WaitPrefetched(
      const ModelName& name, Deadline deadline,
      const std::function<void(const PrefetchProgress&)>& on_progress = {},
      StopFlag* stop = nullptr);
  Result<ModelInfo> Cancel(const ModelName& name, Deadline deadline);
  // A pinned version is not evicted; what is missing of it is brought back.
  Result<ModelInfo> Pin(const ModelName& name, Deadline deadline);
  Result<ModelInfo> Unpin(const ModelName& name, Deadline deadline);
  // `name` needs a version.   Errors: kFailedPrecondition  it is pinned
  Status Remove(const ModelName& name, Deadline deadline);

  // Brings what `target` wants of the version to it, as it becomes available. Errors and cost: as
  // ModelLoader::Load; without the controller there is no manifest, and no load.
  Result<LoadStats> Load(const ModelName& name, LoadTarget* target, const LoadOptions& options,
                         Deadline deadline);
  // The version for several loads with the same options; a version that is added later under the
  // same name is another one.
  Result<std::unique_ptr<OpenModel>> Open(const ModelName& name, const LoadOptions& options,
                                          Deadline deadline);

 private:
  friend class OpenModel;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::model
