#include "bench/sides/subject.h"

#include <iterator>

namespace ems::bench {

namespace {

struct OpText {
  std::string_view name, title;
};
// In the order of SideOp.
constexpr OpText kOpTexts[] = {{"Get", "Get: copy a value out, no checksum"},
                               {"GetChecked", "Get, checksum always verified"},
                               {"GetView", "GetView: a value in place, and letting it go"},
                               {"Exists", "Exists: one key"},
                               {"Lookup", "Lookup: 1,000 keys in one call"},
                               {"Put", "Put from registered memory"},
                               {"PutBatch", "Put from registered memory, several in a call"},
                               {"PutOrdinary", "Put from ordinary memory"}};
static_assert(std::size(kOpTexts) == std::size(kAllOps));

}  // namespace

std::string_view OpName(SideOp op) { return kOpTexts[static_cast<size_t>(op)].name; }
std::string_view OpTitle(SideOp op) { return kOpTexts[static_cast<size_t>(op)].title; }

Status Subject::View(uint64_t /*object*/, const std::function<void(ConstBytes)>& /*look*/) {
  return Error(StatusCode::kUnimplemented, "{} shows nothing in place", name());
}

}  // namespace ems::bench
