// Any bytes, as a trace of requests in each of its formats, plain or gzip: an error that names the
// file, or requests that keep what a trace promises; the same when it is read again, and a shorter
// reading is a beginning of a longer one.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>

#include "bench/trace/trace_reader.h"
#include "common/check.h"
#include "tests/fuzz/fuzz_input.h"

namespace ems::bench {
namespace {

// A line of CSV may stand for half a million blocks; so few of them take less than 10 s.
constexpr uint64_t kRequestsMax = 12;

// Bytes under a path, in memory.
class BytesAsFile final {
 public:
  explicit BytesAsFile(ConstBytes bytes) : fd_(::memfd_create("trace", MFD_CLOEXEC)) {
    EMS_CHECK(fd_ >= 0);
    EMS_CHECK(::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~BytesAsFile() { ::close(fd_); }
  BytesAsFile(const BytesAsFile&) = delete;
  BytesAsFile& operator=(const BytesAsFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

void CheckTrace(const Trace& trace) {
  EMS_CHECK(!trace.requests.empty() && trace.requests.size() <= kRequestsMax);
  uint64_t references = 0, tokens = 0, before_ms = 0;
  size_t blocks_max = 0;
  std::unordered_set<uint64_t> unique;
  for (const TraceRequest& request : trace.requests) {
    EMS_CHECK(request.input_tokens > 0 && request.timestamp_ms >= before_ms);
    const uint64_t blocks = (request.input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens;
    EMS_CHECK(request.blocks.size() == blocks);
    before_ms = request.timestamp_ms;
    references += blocks;
    tokens += request.input_tokens;
    blocks_max = std::max(blocks_max, request.blocks.size());
    unique.insert(request.blocks.begin(), request.blocks.end());
  }
  EMS_CHECK(trace.block_references == references && trace.input_tokens == tokens);
  EMS_CHECK(trace.request_blocks_max == blocks_max && trace.unique_blocks == unique.size());
}

void Run(TraceFormat format, ConstBytes bytes) {
  const BytesAsFile file(bytes);
  const Result<Trace> trace = ReadTrace(file.path(), kRequestsMax, format);
  if (!trace.ok()) {
    EMS_CHECK(Message(trace.status()).find(file.path()) != std::string_view::npos, "{}",
              Message(trace.status()));
    return;
  }
  CheckTrace(*trace);
  const Result<Trace> first = ReadTrace(file.path(), 1, format);
  EMS_CHECK(first.ok() && first->requests.size() == 1);
  EMS_CHECK(first->requests[0].blocks == trace->requests[0].blocks);
}

}  // namespace
}  // namespace ems::bench

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ems::testing::FuzzInput input(data, size);
  const auto format = static_cast<ems::bench::TraceFormat>(input.Take<uint8_t>() % 4);
  ems::bench::Run(format, input.TakeRest());
  return 0;
}
