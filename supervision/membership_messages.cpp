#include "supervision/membership_messages.hpp"

namespace troupe {

namespace {

/// Adds one type after the other and keeps the first error.
class Adder {
 public:
  explicit Adder(net::TypeRegistry& registry) : registry_(registry) {}

  template <class T>
  Adder& add(const char* name) {
    if (result_) {
      result_ = registry_.add<T>(std::string{"troupe.m."} + name);
    }
    return *this;
  }

  expected<void> result() const { return result_; }

 private:
  net::TypeRegistry& registry_;
  expected<void> result_;
};

}  // namespace

expected<void> add_membership_types(net::TypeRegistry& registry) {
  return Adder{registry}
      .add<Member>("member")
      .add<ViewDelta>("view_delta")
      .add<BrokerInfo>("broker_info")
      .add<ViewSnapshot>("view_snapshot")
      .add<MembershipTimes>("membership_times")
      .add<MemberEvent>("member_event")
      .add<DirectoryEntry>("directory_entry")
      .add<WhoIsBroker>("who_is_broker")
      .add<WhoIsReply>("who_is_reply")
      .add<BrokerHere>("broker_here")
      .add<JoinRequest>("join_request")
      .add<JoinReply>("join_reply")
      .add<SyncRequest>("sync_request")
      .add<SyncReply>("sync_reply")
      .add<Observation>("observation")
      .add<Fenced>("fenced")
      .add<DrainRequest>("drain_request")
      .add<CommandReply>("command_reply")
      .add<DrainOrder>("drain_order")
      .add<LeaveRequest>("leave_request")
      .add<EventsRequest>("events_request")
      .add<EventsReply>("events_reply")
      .add<ClaimRequest>("claim_request")
      .add<ClaimReply>("claim_reply")
      .add<ReleaseRequest>("release_request")
      .add<ResolveRequest>("resolve_request")
      .add<DirectoryUpdate>("directory_update")
      .result();
}

}  // namespace troupe
