// Actors on two nodes; the README shows this program.
#include <chrono>
#include <cstdio>

#include <caf/all.hpp>
#include <troupe/net/caf_error.hpp>
#include <troupe/runtime/node.hpp>

struct Greeting {
  std::string text;
};
template <class Inspector>
auto inspect(Inspector& f, Greeting& x) {
  return f(x.text);
}

caf::behavior greeter(caf::event_based_actor*) {
  return {[](const Greeting& hello) { return Greeting{hello.text + " yourself"}; }};
}

troupe::NodeOptions options(const std::string& name) {
  troupe::NodeOptions result;
  result.name = name;
  result.types = [](troupe::net::TypeRegistry& t) { return t.add<Greeting>("example.greeting"); };
  return result;
}

int main() {
  auto a = troupe::Node::start(options("a")).value();  // usually another process or machine
  auto b = troupe::Node::start(options("b")).value();
  const caf::actor local = a->system().spawn(greeter);
  a->mesh().publish("greeter", local);

  const auto peer = b->mesh().connect_wait(a->address()).value();
  const caf::actor remote = b->mesh().find_wait(peer, "greeter").value();
  bool answered = false;
  caf::scoped_actor self{b->system()};
  self->request(remote, std::chrono::seconds{10}, Greeting{"hello"})
      .receive([&](const Greeting& answer) { answered = std::puts(answer.text.c_str()) >= 0; },
               [](const caf::error& err) { std::puts(troupe::describe(err).c_str()); });
  caf::anon_send_exit(local, caf::exit_reason::user_shutdown);
  return answered ? 0 : 1;
}
