#include "bench/model/model_instance.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "bench/harness/child_process.h"
#include "bench/harness/figures.h"
#include "bench/harness/page_buffer.h"
#include "common/bytes.h"
#include "common/hash.h"
#include "common/thread_pool.h"
#include "ems_model/host_target.h"
#include "ems_model/model_cache.h"
#include "model_files/source/open_source.h"

namespace ems::bench {
namespace {

constexpr Duration kLoadPatience = std::chrono::minutes(20);
constexpr uint64_t kReadBytes = 4 * kMiB;
constexpr size_t kTextBytesMax = 64 * kKiB;
constexpr size_t kReaders = 4;
constexpr uint32_t kLoadThreads = 4;  // of a load of EMS, and of the copy beside it

// Messages of a socket that keeps them apart. False: the other side is gone.
bool SendText(int fd, std::string_view text) {
  ssize_t sent = -1;
  do sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

std::optional<std::string> ReceiveText(int fd) {
  std::string text(kTextBytesMax, '\0');
  ssize_t got = -1;
  do got = ::recv(fd, text.data(), text.size(), 0);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return std::nullopt;
  text.resize(static_cast<size_t>(got));
  return text;
}

// Memory that is there: touched, on huge pages where there are any.
Status Resize(uint64_t bytes, PageBuffer* buffer) {
  if (buffer->bytes().size() == bytes) return OkStatus();
  *buffer = PageBuffer();
  EMS_ASSIGN_OR_RETURN(*buffer, PageBuffer::Make(bytes));
  return OkStatus();
}

class Loader {
 public:
  virtual ~Loader() = default;
  // All files of the model, one after the other by path, into `device`; true: nothing came from
  // the source.
  virtual Result<bool> Load(const std::string& version, const std::string& url,
                            MutableBytes device) = 0;
};

// Reads the whole source, several ranges at a time.
Status ReadSource(const std::string& url, MutableBytes into) {
  EMS_ASSIGN_OR_RETURN(const auto source, model::OpenSource({.url = url}));
  const Deadline deadline = Deadline::After(kLoadPatience);
  EMS_ASSIGN_OR_RETURN(const std::vector<model::SourceFile> files, source->List(deadline));
  struct Piece {
    const model::SourceFile* file;
    uint64_t offset;
    MutableBytes into;
  };
  std::vector<Piece> pieces;
  uint64_t at = 0;
  for (const model::SourceFile& file : files) {
    for (uint64_t offset = 0; offset < file.bytes; offset += kReadBytes) {
      const uint64_t part = std::min(kReadBytes, file.bytes - offset);
      if (part > into.size() - at) return Error(StatusCode::kOutOfRange, "larger than announced");
      pieces.push_back({&file, offset, into.subspan(at, part)});
      at += part;
    }
  }
  std::atomic<size_t> next{0};
  std::vector<Status> ends(kReaders);
  std::vector<Thread> readers;
  readers.reserve(kReaders);
  for (Status& end : ends) {
    readers.emplace_back("read", [&pieces, &next, &end, &source, deadline] {
      for (size_t i = next++; i < pieces.size() && end.ok(); i = next++)
        end = source->Read(*pieces[i].file, pieces[i].offset, pieces[i].into, deadline);
    });
  }
  readers.clear();
  for (const Status& end : ends) EMS_RETURN_IF_ERROR(end);
  return OkStatus();
}

class NoCache final : public Loader {
 public:
  Result<bool> Load(const std::string&, const std::string& url, MutableBytes device) override {
    EMS_RETURN_IF_ERROR(ReadSource(url, device));
    return false;
  }
};

class LocalDram final : public Loader {
 public:
  Result<bool> Load(const std::string& version, const std::string& url,
                    MutableBytes device) override {
    const bool hit = kept_ == version;
    if (!hit) {
      kept_.clear();
      EMS_RETURN_IF_ERROR(Resize(device.size(), &memory_));
      EMS_RETURN_IF_ERROR(ReadSource(url, memory_.bytes()));
      kept_ = version;
    }
    std::memcpy(device.data(), memory_.bytes().data(), device.size());
    return hit;
  }

 private:
  PageBuffer memory_;  // as much as one model: what an instance's share of DRAM holds
  std::string kept_;
};

class Ems final : public Loader {
 public:
  Ems(const std::string& controller, const std::string& name_space)
      : cache_({.controller = controller, .name_space = name_space}) {}
  Result<bool> Load(const std::string& version, const std::string&, MutableBytes device) override {
    uint64_t at = 0;  // files come by path
    model::HostTarget target(
        {.choose = {}, .room = [&](std::string_view, uint64_t bytes) -> Result<MutableBytes> {
           if (bytes > device.size() - at)
             return Error(StatusCode::kOutOfRange, "larger than announced");
           at += bytes;
           return device.subspan(at - bytes, bytes);
         }});
    EMS_ASSIGN_OR_RETURN(const model::LoadStats stats,
                         cache_.Load({.model = "bench/model", .version = version}, &target,
                                     {.threads = kLoadThreads, .fallback_to_source = false},
                                     Deadline::After(kLoadPatience)));
    return stats.misses == 0 && stats.jobs == 0 && stats.source_bytes == 0;
  }

 private:
  model::ModelCache cache_;
};

std::unique_ptr<Loader> MakeLoader(const std::string& strategy, const std::string& controller,
                                   const std::string& name_space) {
  if (strategy == StrategyName(ModelStrategy::kNoCache)) return std::make_unique<NoCache>();
  if (strategy == StrategyName(ModelStrategy::kLocalDram)) return std::make_unique<LocalDram>();
  if (strategy == StrategyName(ModelStrategy::kEms))
    return std::make_unique<Ems>(controller, name_space);
  return nullptr;
}

std::string ErrorText(const Status& status) { return "error " + ToString(status); }

std::string DoLoad(Loader* loader, std::istringstream* words, PageBuffer* device) {
  std::string version, url;
  uint64_t bytes = 0;
  *words >> version >> url >> bytes;
  if (const Status sized = Resize(bytes, device); !sized.ok()) return ErrorText(sized);
  const Duration cpu = ProcessCpuTime();
  const TimePoint begin = Clock::System().Now();
  const Result<bool> hit = loader->Load(version, url, device->bytes());
  const double seconds = SecondsSince(begin);
  if (!hit.ok()) return ErrorText(hit.status());
  return fmt::format("ok {} {} {} {} {}", seconds, Seconds(ProcessCpuTime() - cpu), bytes,
                     Hash64(device->bytes()), *hit ? 1 : 0);
}

// As many threads as a load has, each a share of the bytes.
void CopyInThreads(MutableBytes to, ConstBytes from) {
  std::vector<Thread> threads;
  threads.reserve(kLoadThreads);
  for (size_t i = 0; i < kLoadThreads; ++i) {
    const size_t begin = from.size() * i / kLoadThreads, end = from.size() * (i + 1) / kLoadThreads;
    threads.emplace_back("copy", [to, from, begin, end] {
      std::memcpy(to.data() + begin, from.data() + begin, end - begin);
    });
  }
}

std::string DoCopy(uint64_t bytes) {
  PageBuffer from, to;
  for (PageBuffer* buffer : {&from, &to})
    if (const Status sized = Resize(bytes, buffer); !sized.ok()) return ErrorText(sized);
  std::vector<double> rounds(5);
  for (double& round : rounds) {
    const TimePoint begin = Clock::System().Now();
    CopyInThreads(to.bytes(), from.bytes());
    round = SecondsSince(begin);
  }
  return fmt::format("ok {}", Median(std::move(rounds)));
}

}  // namespace

std::string_view StrategyName(ModelStrategy strategy) {
  switch (strategy) {
    case ModelStrategy::kNoCache:
      return "no-cache";
    case ModelStrategy::kLocalDram:
      return "local-dram";
    case ModelStrategy::kEms:
      break;
  }
  return "ems";
}

Result<std::unique_ptr<ModelInstance>> ModelInstance::Start(const std::string& program,
                                                            ModelStrategy strategy,
                                                            const std::string& controller,
                                                            const std::string& name_space) {
  int pair[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return Error(StatusCode::kInternal, "socketpair: {}", fabric::ErrnoText(errno));
  fabric::Fd ours(pair[0]);
  const fabric::Fd theirs(pair[1]);
  const std::vector<std::string> arguments = {
      program,        "model-instance", "--strategy",  std::string(StrategyName(strategy)),
      "--controller", controller,       "--namespace", name_space};
  EMS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(arguments, "", theirs.get()));
  return std::make_unique<ModelInstance>(Passkey(), pid, std::move(ours));
}

ModelInstance::~ModelInstance() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  Reap(pid_);
}

Status ModelInstance::Tell(const std::string& text) {
  if (SendText(socket_.get(), text)) return OkStatus();
  return Error(StatusCode::kInternal, "an instance is gone");
}

Result<std::string> ModelInstance::Answer() {
  const auto text = ReceiveText(socket_.get());
  if (!text) return Error(StatusCode::kInternal, "an instance is gone");
  if (text->starts_with("ok ")) return text->substr(3);
  return Error(StatusCode::kInternal, "an instance could not load: {}",
               text->starts_with("error ") ? text->substr(6) : *text);
}

Status ModelInstance::Begin(const std::string& version, const std::string& url, uint64_t bytes) {
  return Tell(fmt::format("load {} {} {}", version, url, bytes));
}

Result<InstanceLoad> ModelInstance::End() {
  EMS_ASSIGN_OR_RETURN(const std::string text, Answer());
  std::istringstream words(text);
  InstanceLoad load;
  int hit = 0;
  words >> load.seconds >> load.cpu_seconds >> load.bytes >> load.hash >> hit;
  load.hit = hit != 0;
  return load;
}

Result<double> ModelInstance::Copy(uint64_t bytes) {
  EMS_RETURN_IF_ERROR(Tell(fmt::format("copy {}", bytes)));
  EMS_ASSIGN_OR_RETURN(const std::string text, Answer());
  double seconds = 0;
  std::istringstream(text) >> seconds;
  return seconds;
}

int RunModelInstance(const std::string& strategy, const std::string& controller,
                     const std::string& name_space) {
  const auto loader = MakeLoader(strategy, controller, name_space);
  if (loader == nullptr) return 2;
  PageBuffer device;
  while (const auto text = ReceiveText(kInheritedFd)) {
    std::istringstream words(*text);
    std::string command;
    words >> command;
    uint64_t bytes = 0;
    std::string answer = "error no such command";
    if (command == "load") answer = DoLoad(loader.get(), &words, &device);
    if (command == "copy" && words >> bytes) answer = DoCopy(bytes);
    if (!SendText(kInheritedFd, answer)) break;
  }
  return 0;
}

}  // namespace ems::bench
