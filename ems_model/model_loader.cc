#include "ems_model/model_loader.h"

#include <algorithm>
#include <array>
#include <optional>

#include "common/check.h"
#include "common/guarded.h"
#include "common/retry.h"
#include "common/thread_pool.h"
#include "ems_model/internal/block_queue.h"
#include "ems_model/internal/block_reader.h"
#include "ems_model/internal/file_survey.h"
#include "ems_model/internal/header_target.h"

namespace ems::model {
namespace {

using internal::BlockQueue;
using internal::BlockReader;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kThreadsMax = 64;
constexpr Duration kNewsWait = milliseconds(100);
constexpr Duration kJobPauseMost = seconds(2);
constexpr Duration kCatalogTimeout = seconds(2);  // beyond the wait that was asked for
// A version that does not fit into the pool is brought in by job after job; what they report is no
// sign of life any more.
constexpr uint64_t kJobsThatCount = 3;
constexpr uint64_t kRetriesThatCount = 16;  // of jobs that failed for their source's sake, besides
constexpr int kSlowSource = 6;              // times pool_patience
constexpr Duration kProbeEvery = seconds(1);
constexpr Duration kLookAsideEvery = seconds(1);
constexpr Duration kLookAsideTimeout = milliseconds(200);
constexpr Duration kLookAsidePause = seconds(10);  // without a controller
constexpr size_t kProbesMax = 64;

// The source is not what it was, wherever it is read. That servers cannot reach it, may not read it
// or have no keys says nothing about this process.
bool IsOfSource(const Status& status) { return status.code() == StatusCode::kFailedPrecondition; }

// A controller that has too much to do, too: if everybody read the source instead, that would be
// worse.
bool IsOutage(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded ||
         status.code() == StatusCode::kResourceExhausted;
}

// Of the source of a job, which may be there again soon.
bool MayPass(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded;
}

uint32_t ThreadsOf(const LoadOptions& options) {
  return std::clamp(options.threads, 1U, kThreadsMax);
}

}  // namespace

// One pass over the blocks that a target wants. What follows runs on the thread that loads.
struct ModelLoader::Run {
  Run(ModelLoader* loader_in, LoadTarget* target, std::span<const uint32_t> wanted,
      uint64_t bytes_in, Deadline deadline_in)
      : loader(loader_in),
        options(loader_in->options_),
        catalog(loader_in->parts_.catalog),
        deadline(deadline_in),
        bytes(bytes_in),
        queue(*loader_in->parts_.manifest, wanted, 2 * ThreadsOf(loader_in->options_),
              loader_in->stop_sources_),
        reader({.manifest = loader_in->parts_.manifest,
                .pool = loader_in->parts_.pool,
                .digests = loader_in->digests_,
                .target = target,
                .queue = &queue,
                .source = [this](uint32_t stream) { return Source(stream); },
                .survey = loader_in->survey_.get()},
               options, deadline_in) {}

  Status Go();
  Result<WeightSource*> Source(uint32_t stream);
  // Asks for all digests that are new; waits for one for `wait` at most.
  void Poll(Duration wait);
  void Learn(const DigestNews& news);
  void StartJob();
  // What a job's end means for blocks that are still missing.
  void JudgeJob(const BlockQueue::State& state);
  // Of a call that ends with the load, or, if that is sooner, with its own time.
  struct CatalogTime {
    Deadline until;
    bool cut;  // to what is left of the load: that it was too little says nothing of the controller
  };
  CatalogTime TimeForCatalog(Duration wait) const;
  void CatalogFailed(const Status& status, const CatalogTime& time);
  void GoDirect(const Status& why);
  // The job has failed, as its source does not answer: another one may do.
  void RetryJob(const BlockQueue::State& state, const Status& why);
  void CheckPatience(const BlockQueue::State& state);
  // While the source is read: what others have brought into the pool meanwhile comes from there.
  void LookAside();
  Status Probe();
  Status OutOfTime(const BlockQueue::State& state) const;

  ModelLoader* const loader;
  const LoadOptions& options;
  LoadCatalog* const catalog;
  const Deadline deadline;
  const uint64_t bytes;
  BlockQueue queue;
  BlockReader reader;
  using Streams = std::array<Result<WeightSource*>, 2>;
  // One lock for both: sources are opened by one thread at a time.
  Guarded<Streams> sources{std::in_place, Streams{nullptr, nullptr}};

  JobInfo job;           // as last heard of
  uint64_t ended = 0;    // number of the job whose end has been heard of
  uint64_t joined = 0;   // number of the job that this load waits for
  uint64_t jobs = 0;     // begun or joined
  uint64_t counted = 0;  // number of the last one that has ended
  // What those that have ended have read from the source, about; what is read twice counts once.
  // When it is half of the version and servers say that blocks are missing again, it does not fit:
  // one more job would read as much, and lose it as well. Not of jobs begun under another view:
  // what they brought in may have been lost with a server.
  uint64_t brought = 0;
  uint64_t job_view = 0;   // the pool's when the last one was begun or joined
  TimePoint next_start{};  // not before
  Duration job_pause = kNewsWait / 2;
  uint64_t arrivals_at_start = 0;  // of the last job
  TimePoint failing_since{};       // jobs have failed one after the other
  uint64_t retries = 0;            // after them
  TimePoint next_look{};           // aside, not before
  TimePoint next_poll{};           // not before, for the job's state alone
  bool direct = false;             // the pool is not waited for any more
  bool polled = false;
  Status silence;  // of the controller, since its last answer
  Status detour;   // why blocks were read from the source
  TimePoint next_probe{};
  TimePoint last_news = Clock::System().Now();
  uint64_t arrivals = 0, job_bytes = 0;
};

Result<WeightSource*> ModelLoader::Run::Source(uint32_t stream) {
  auto streams = sources.Lock();  // nothing is connected by opening one
  Result<WeightSource*>& opened = (*streams)[stream];
  if (!opened.ok() || *opened != nullptr) return opened;
  EMS_CHECK(stream < 2, "stream {}", stream);
  std::unique_ptr<WeightSource>& source = loader->sources_[stream];
  if (source == nullptr) {
    auto made = loader->parts_.open_source(loader->stop_sources_);
    if (made.ok())
      source = *std::move(made);
    else
      opened = made.status();
  }
  if (opened.ok()) opened = source.get();
  return opened;
}

void ModelLoader::Run::Learn(const DigestNews& news) {
  std::vector<uint32_t> blocks;
  for (const auto& [block, digest] : news.digests) {
    if (block >= loader->known_.size()) continue;
    if (!loader->known_[block]) loader->digests_[block] = digest;
    loader->known_[block] = true;
    blocks.push_back(block);
  }
  loader->since_ += static_cast<uint32_t>(news.digests.size());
  if (news.known < loader->since_) loader->since_ = 0;  // a controller that knows less than before
  if (!blocks.empty()) last_news = Clock::System().Now();
  queue.Learn(blocks);
}

ModelLoader::Run::CatalogTime ModelLoader::Run::TimeForCatalog(Duration wait) const {
  const Deadline own = Deadline::After(wait + kCatalogTimeout);
  const bool cut = deadline.at() < own.at();
  return {.until = cut ? deadline : own, .cut = cut};
}

void ModelLoader::Run::Poll(Duration wait) {
  next_poll = Clock::System().Now() + kNewsWait / 2;
  wait = std::min(wait, deadline.Remaining() / 2);
  for (bool more = true; more; wait = Duration(0)) {
    const CatalogTime time = TimeForCatalog(wait);
    const Result<DigestNews> news = catalog->Digests(loader->since_, wait, time.until);
    if (!news.ok()) return CatalogFailed(news.status(), time);
    silence = OkStatus();
    job = news->job;
    Learn(*news);
    more = !news->digests.empty() && loader->since_ < news->known;
  }
  polled = true;
}

void ModelLoader::Run::StartJob() {
  const CatalogTime time = TimeForCatalog(Duration(0));
  const Result<JobInfo> started = catalog->StartJob(options.priority, time.until);
  next_start = Clock::System().Now() + kNewsWait * (1 << std::min<uint64_t>(jobs, 4));
  if (!started.ok()) return CatalogFailed(started.status(), time);
  silence = OkStatus();
  job = *started;
  joined = job.number;
  job_view = loader->parts_.pool->view();
  ++jobs;
  // Jobs that bring nothing here are no help, as when a server cannot be reached.
  job_pause = arrivals != arrivals_at_start ? kNewsWait : std::min(2 * job_pause, kJobPauseMost);
  arrivals_at_start = arrivals;
  next_start = Clock::System().Now() + job_pause;
}

void ModelLoader::Run::CatalogFailed(const Status& status, const CatalogTime& time) {
  if (time.cut && status.code() == StatusCode::kDeadlineExceeded) return;
  if (IsOutage(status)) {
    silence = status;
    (void)queue.WaitForNews(kNewsWait);
    return;
  }
  // Removed, or nothing that will pass.
  GoDirect(status);
}

void ModelLoader::Run::GoDirect(const Status& why) {
  direct = true;
  if (!options.fallback_to_source) return queue.Fail(why);
  if (detour.ok()) detour = why;
  queue.GoDirect();
}

void ModelLoader::Run::JudgeJob(const BlockQueue::State& state) {
  if (joined == 0 || job.number < joined) return;
  const std::string what =
      fmt::format("job {} of {}@{}", job.number, loader->parts_.manifest->model,
                  loader->parts_.manifest->version);
  switch (job.state) {
    case JobState::kFailed:
      if (IsOfSource(job.error)) return queue.Fail(Prefixed(job.error, what));
      if (MayPass(job.error)) return RetryJob(state, Prefixed(job.error, what));
      return GoDirect(Prefixed(job.error, what));
    case JobState::kCancelled:
      return GoDirect(Error(StatusCode::kCancelled, "{} has been cancelled", what));
    case JobState::kDone:
    case JobState::kNone:
      failing_since = TimePoint();
      if (loader->parts_.pool->view() != job_view) {
        counted = job.number;
        brought = 0;
      } else if (job.number > counted) {
        counted = job.number;
        const bool once = loader->parts_.manifest->source.first_read == FirstRead::kOnce;
        brought += once ? job.source_bytes : job.source_bytes / 2;
      }
      // What came in before its end is there now; the rest takes another job.
      if (job.number > ended) {
        ended = job.number;
        return queue.AskAgain();
      }
      if (state.waiting() == 0 || Clock::System().Now() < next_start || !queue.AskedAgain()) return;
      if (options.fallback_to_source && state.refused == 0 &&
          2 * brought >= loader->parts_.manifest->bytes()) {
        return GoDirect(Error(StatusCode::kResourceExhausted,
                              "{} has read {} from the source, and {} blocks are not there any "
                              "more: does the pool have room for all of it?",
                              what, FormatBytes(job.source_bytes), state.waiting()));
      }
      StartJob();
      return;
    case JobState::kRunning:
      // Time to ask again for what came in before its end. A load whose blocks go as soon as they
      // come begins jobs ever more seldom.
      next_start = std::max(
          next_start, Clock::System().Now() + 2 * BlockQueue::kRetryMost *
                                                  (1 << std::min<uint64_t>(jobs, kJobsThatCount)));
      return;
  }
}

void ModelLoader::Run::RetryJob(const BlockQueue::State& state, const Status& why) {
  if (state.waiting() == 0) return;
  const TimePoint now = Clock::System().Now();
  const Duration patience =
      options.fallback_to_source ? options.pool_patience : BlockReader::kSourcePatience;
  if (failing_since == TimePoint()) failing_since = now;
  if (now - std::max(failing_since, last_news) >= patience) return GoDirect(why);
  if (now < next_start) return;
  retries += retries < kRetriesThatCount ? 1 : 0;
  StartJob();
}

void ModelLoader::Run::LookAside() {
  const TimePoint now = Clock::System().Now();
  if (now < next_look) return;
  // Not longer: a caller that stops this load, or waits for its end, waits for this call, too.
  const Deadline until(std::min(deadline.at(), Deadline::After(kLookAsideTimeout).at()));
  const Result<DigestNews> news = catalog->Digests(loader->since_, Duration(0), until);
  next_look = Clock::System().Now() + (news.ok() ? kLookAsideEvery : kLookAsidePause);
  if (!news.ok()) return;
  Learn(*news);
  if (!news->digests.empty() && loader->since_ < news->known) next_look = now;
}

void ModelLoader::Run::CheckPatience(const BlockQueue::State& state) {
  const TimePoint now = Clock::System().Now();
  const uint64_t progress = job.bytes_done + job.checked_bytes + job.read_bytes;
  if (state.arrivals != arrivals || (progress != job_bytes && jobs <= kJobsThatCount + retries))
    last_news = now;
  arrivals = state.arrivals;
  job_bytes = progress;
  if (state.waiting() == 0 || now - last_news < options.pool_patience) return;
  if (!options.fallback_to_source) return;  // the deadline decides
  // What was wrong with the pool when it was last read may have passed since: it is asked.
  Status why = silence;
  if (why.ok() && now - last_news < kSlowSource * options.pool_patience)
    why = Probe();
  else if (why.ok() && !state.trouble.ok())
    why = state.trouble;
  else if (why.ok())
    why = Error(StatusCode::kUnavailable, "nothing came from the pool");
  if (why.ok()) return;
  if (detour.ok()) detour = why;
  queue.GoDirect();
}

// Of a pool from which nothing comes, now and then: is it only that the source is slow?
Status ModelLoader::Run::Probe() {
  const TimePoint now = Clock::System().Now();
  if (now < next_probe) return OkStatus();
  next_probe = now + kProbeEvery;
  std::vector<BlockRoute> routes;
  for (const uint32_t block : queue.Waiting(kProbesMax))
    routes.push_back(loader->parts_.manifest->blocks[block].route);
  const Duration left = deadline.Remaining();
  const Status answer =
      loader->parts_.pool->Probe(routes, std::clamp<Duration>(left, milliseconds(1), kProbeEvery));
  const bool cut = left < kProbeEvery && answer.code() == StatusCode::kDeadlineExceeded;
  return cut ? OkStatus() : answer;
}

Status ModelLoader::Run::OutOfTime(const BlockQueue::State& state) const {
  std::string text =
      fmt::format("{} of {} in place, {} blocks missing", FormatBytes(reader.counts().bytes.load()),
                  FormatBytes(bytes), state.left);
  if (joined != 0) {
    text += fmt::format("; job {} is {} at {}", job.number, JobStateName(job.state),
                        FormatBytes(job.bytes_done));
    if (!job.error.ok()) text += fmt::format(" ({})", Message(job.error));
  }
  text += fmt::format("; the source is {}", loader->parts_.manifest->source.url);
  if (!silence.ok()) text += fmt::format("; {}", Message(silence));
  if (!state.trouble.ok()) text += fmt::format("; {}", Message(state.trouble));
  if (!state.source_trouble.ok())
    text += fmt::format("; from the source: {}", Message(state.source_trouble));
  return Error(StatusCode::kDeadlineExceeded, "{}", text);
}

Status ModelLoader::Run::Go() {
  {
    std::vector<uint32_t> known;
    for (uint32_t i = 0; i < loader->known_.size(); ++i) {
      if (loader->known_[i]) known.push_back(i);
    }
    queue.Learn(known);
  }
  std::vector<Thread> readers;
  for (uint32_t i = 0; i < ThreadsOf(options); ++i)
    readers.emplace_back(fmt::format("ems-load-{}", i), [this] { reader.Work(); });
  BlockQueue::State state = queue.state();
  while (!state.over()) {
    if (options.stop != nullptr && options.stop->IsSet()) {
      queue.Fail(Error(StatusCode::kCancelled, "the load has been stopped"));
      break;
    }
    if (deadline.Passed()) {
      queue.Fail(OutOfTime(state));
      break;
    }
    if (!direct && state.waiting() > 0) {
      // The first look does not wait: it brings what has been known for long.
      if (state.unknown > 0 || Clock::System().Now() >= next_poll)
        Poll(state.unknown > 0 && polled && joined != 0 ? kNewsWait : Duration(0));
      state = queue.state();
      if (!direct && state.waiting() > 0 && polled && joined == 0) StartJob();
      if (!direct) JudgeJob(queue.state());
    } else if (state.direct > 0) {
      LookAside();
    }
    CheckPatience(queue.state());
    state = queue.state();
    const bool asks = !direct && state.unknown > 0;  // then it is Poll that waits
    if (!state.over()) {
      const Duration left = deadline.Remaining();
      state = queue.WaitForNews(std::min(left, asks ? Duration(0) : kNewsWait));
    }
    if (direct && state.waiting() > 0) queue.GoDirect();
    if (options.on_progress) options.on_progress({reader.counts().bytes.load(), bytes});
  }
  for (Thread& thread : readers) thread.Join();
  const Status error = queue.state().error;
  if (error.ok() || detour.ok() || error == detour) return error;
  return Error(error.code(), "{} (from the pool: {})", Message(error), Message(detour));
}

ModelLoader::ModelLoader(Parts parts, LoadOptions options)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      stop_sources_(std::make_shared<StopFlag>()),
      survey_(std::make_unique<internal::FileSurvey>(parts_.manifest)) {
  EMS_CHECK(parts_.pool != nullptr && parts_.catalog != nullptr && parts_.open_source,
            "a load has a pool, a catalog and a way to its source");
  digests_.resize(parts_.manifest->blocks.size());
  known_.resize(parts_.manifest->blocks.size());
}

ModelLoader::~ModelLoader() = default;

Status ModelLoader::LoadBlocks(LoadTarget* target, Deadline deadline, LoadStats* stats) {
  std::vector<uint32_t> wanted;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < parts_.manifest->blocks.size(); ++i) {
    const ManifestBlock& block = parts_.manifest->blocks[i];
    const uint64_t of_block = target->Wants(block.file, block.offset, block.bytes);
    if (of_block == 0) continue;
    bytes += of_block;
    wanted.push_back(i);
  }
  survey_->Begin();
  Run run(this, target, wanted, bytes, deadline);
  const Status status = run.Go();
  const BlockReader::Counts& counts = run.reader.counts();
  stats->bytes += counts.bytes.load();
  stats->dram_bytes += counts.dram_bytes.load();
  stats->ssd_bytes += counts.ssd_bytes.load();
  stats->source_bytes += counts.source_bytes.load();
  stats->blocks += counts.blocks.load();
  stats->misses += counts.misses.load();
  stats->jobs += run.jobs;
  stats->waiting += run.queue.idle();
  if (!run.detour.ok()) stats->detour = run.detour;
  if (status.ok()) return status;
  // A read that stalled has been stopped, and its source with it: the next load opens another.
  for (std::unique_ptr<WeightSource>& source : sources_) source.reset();
  stop_sources_ = std::make_shared<StopFlag>();
  return status;
}

Status ModelLoader::ReadTables(Deadline deadline, LoadStats* stats) {
  internal::HeaderTarget target(parts_.manifest);
  while (!target.done()) {
    EMS_RETURN_IF_ERROR(LoadBlocks(&target, deadline, stats));
    EMS_RETURN_IF_ERROR(target.Parse());
  }
  tables_ = target.TakeTables();
  EMS_CHECK(tables_.size() == parts_.manifest->files.size(), "one entry a file");
  return OkStatus();
}

Result<LoadStats> ModelLoader::Load(LoadTarget* target, Deadline deadline) {
  const TimePoint begin = Clock::System().Now();
  LoadStats stats;
  std::vector<LoadFile> files;
  for (const ManifestFile& file : parts_.manifest->files)
    files.push_back({.path = file.path, .bytes = file.bytes, .table = nullptr});
  if (target->wants_tables()) {
    if (tables_.empty()) {
      LoadStats headers;  // not bytes that arrive at the target
      EMS_RETURN_IF_ERROR(ReadTables(deadline, &headers));
      headers.bytes = headers.blocks = 0;
      stats = headers;
    }
    for (size_t i = 0; i < files.size(); ++i) {
      if (tables_[i]) files[i].table = &*tables_[i];
    }
  }
  Status status = target->Begin(files);
  if (status.ok()) status = LoadBlocks(target, deadline, &stats);
  const Status ended = target->End(status);
  EMS_RETURN_IF_ERROR(status);
  EMS_RETURN_IF_ERROR(ended);
  stats.elapsed = Clock::System().Now() - begin;
  return stats;
}

}  // namespace ems::model
