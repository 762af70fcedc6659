#include "tests/fault/crashtest/control_load.h"

#include <set>
#include <utility>

#include "cluster/view_cache.h"
#include "common/clock.h"
#include "proto/controller.pb.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kKept = 5;  // so many namespaces later one is deleted
constexpr milliseconds kPause{3};

std::string NameOf(uint64_t number) { return "made-" + std::to_string(number); }

std::string TextOf(ViewVersion version) {
  return fmt::format("({}, {})", version.term(), version.epoch());
}

}  // namespace

ControlLoad::ControlLoad(const std::string& address,
                         std::function<void(const std::string&)> complain)
    : address_(address), complain_(std::move(complain)) {}

void ControlLoad::Start() {
  stop_ = std::make_unique<StopFlag>();
  controller_ = std::make_unique<ControllerClient>(address_, "power");
  thread_ = Thread("control-load", [this] {
    while (!stop_->WaitFor(kPause)) {
      ChangeOne();
      LookAtViews();
    }
  });
}

void ControlLoad::Stop() {
  if (stop_ != nullptr) stop_->Set();
  thread_.Join();
}

// A call that is not answered with OK may have happened or not.
void ControlLoad::ChangeOne() {
  const uint64_t number = next_++;
  NamespaceInfo wanted;
  wanted.name = NameOf(number);
  const bool made = controller_->CreateNamespace(wanted, Deadline::After(seconds(1))).ok();
  namespaces_[wanted.name] = made ? Fate::kMade : Fate::kEither;
  if (made) ++changes_;
  if (number < kKept) return;
  const std::string old = NameOf(number - kKept);
  const bool gone = controller_->DeleteNamespace(old, Deadline::After(seconds(1))).ok();
  namespaces_[old] = gone ? Fate::kGone : Fate::kEither;
  if (gone) ++changes_;
}

void ControlLoad::LookAtViews() {
  ViewCache cache;
  if (controller_->Refresh(&cache, Deadline::After(seconds(1))).ok() && cache.view() != nullptr)
    published_ = std::max(published_, cache.view()->version());
  v1::ListNodesReply reply;
  if (!controller_->ListNodes(&reply, Deadline::After(seconds(1))).ok()) return;
  for (const v1::NodeStatus& node : reply.nodes())
    installed_ = std::max(installed_, ViewVersion(node.term(), node.epoch()));
}

void ControlLoad::Check() {
  controller_ = std::make_unique<ControllerClient>(address_, "power");
  const ViewVersion before = published_;
  LookAtViews();
  ViewCache cache;
  const Status asked = controller_->Refresh(&cache, Deadline::After(seconds(5)));
  if (!asked.ok() || cache.view() == nullptr)
    return complain_("the controller gives no view: " + ToString(asked));
  const ViewVersion now = cache.view()->version();
  if (now < before) complain_(fmt::format("view {} after view {}", TextOf(now), TextOf(before)));
  const auto listed = controller_->ListNamespaces(Deadline::After(seconds(5)));
  if (!listed.ok()) return complain_("namespaces: " + ToString(listed.status()));
  std::set<std::string> there;
  for (const NamespaceInfo& one : *listed) there.insert(one.name);
  for (const auto& [name, fate] : namespaces_) {
    if (fate == Fate::kMade && !there.contains(name))
      complain_("namespace " + name + " is gone, it was acknowledged");
    if (fate == Fate::kGone && there.contains(name))
      complain_("namespace " + name + " is back, its end was acknowledged");
  }
}

}  // namespace ems::testing
