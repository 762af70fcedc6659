#pragma once
// Reads request traces, plain or gzip, in one of several formats. Mooncake's is a JSON object a
// line:
//
//   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, …, 13]}
//
// timestamp: ms since the start; lengths: tokens; hash_ids: prefix-chained names of 512-token
// blocks of the input, the last one possibly partial, so equal ids mean equal prefixes up to there.
// The others: csv_requests.h, conversation.h. Of ShareGPT's conversations kConversationsAtOnce are
// under way at a time, each a turn in turn; they and vLLM's prompts have no times: all are 0.
// Bound: 1 million requests, 50 million block references; those of trace_file.h.
#include <string>
#include <string_view>
#include <vector>

#include "bench/trace/trace.h"
#include "common/status.h"

namespace ems::bench {

enum class TraceFormat { kMooncake, kVllm, kShareGpt, kCsv };
// "mooncake", …, in their order.
std::vector<std::string> TraceFormatNames();
// One of the names.
TraceFormat TraceFormatOf(std::string_view name);

inline constexpr size_t kConversationsAtOnce = 64;

// Reads the first `requests_max` requests of `path`; 0: all of them.
// Errors: kNotFound  no such file    kInvalidArgument  not such a trace: names file, line and what
// is wrong with it    kOutOfRange  above a bound    kDataLoss  a file that is cut or damaged
Result<Trace> ReadTrace(const std::string& path, uint64_t requests_max = 0,
                        TraceFormat format = TraceFormat::kMooncake);

}  // namespace ems::bench
