# Names, what is known of them, and the two ends of a transfer.
my %do = (
    stat => sub { my $p = place(shift); my $s = look($p, 0) or fail($!); say_all(record('', $s)) },
    list => sub {
        my ($hex, $deep, $after, $max) = @_;
        my ($top, @names, $cut) = (place($hex));
        $after = pack 'H*', $after;
        my $walk;
        $walk = sub {
            my ($dir, $prefix, $depth) = @_;
            my $d;
            if (!opendir $d, $dir) { fail($!) if $prefix eq ''; return }
            for my $n (readdir $d) {
                next if $n eq '.' || $n eq '..';
                push @names, $prefix . $n;
                fail(12) if @names > 1000000;
                next unless $deep && !-l "$dir/$n" && -d _;
                if ($depth >= 60) { $cut = 1 } else { $walk->("$dir/$n", "$prefix$n/", $depth + 1) }
            }
        };
        $walk->($top, '', 0);
        @names = sort grep { $after eq '' || $_ gt $after } @names;
        my $more = @names > $max;
        $#names = $max - 1 if $more;
        say_all(($more ? 1 : 0) . "\0" . ($cut ? 1 : 0) . "\0");
        my $out = '';
        for my $n (@names) {
            my $s = look("$top/$n", 0) or next;
            $out .= record($n, $s);
            if (length $out > 60000) { say_all($out); $out = '' }
        }
        say_all($out);
    },
    mkdir => sub {
        my ($hex, $mode) = @_;
        my $p = place($hex);
        my $s = look($p, 1);
        fail($s->{type} eq 'd' ? 0 : 17) if $s && $s->{type} ne 'd';
        make_path($p, oct $mode) or fail($!);
        $s = look($p, 0) or fail($!);
        say_all(record('', $s));
    },
    remove => sub {
        my ($hex, $deep, $cond) = @_;
        my $p = place($hex);
        my ($up) = $p =~ m{^(.*?)/+[^/]+/*$};
        my $held = alone(defined $up && $up ne '' ? $up : '/');
        my $s = look($p, 0);
        fail($!) if !$s && $! != 2;
        fail(10002) unless holds($cond, $s);
        fail(2) unless $s;
        if ($s->{type} ne 'd') { unlink $p or fail($!) }
        elsif ($deep) { my $q = $p; $q =~ s{/+$}{}; remove_tree($q) }
        else { rmdir $p or fail($!) }
    },
    move => sub {
        my ($from, $to) = map { place($_) } @_;
        my $s = look($from, 0) or fail($!);
        my $t = look($to, 0);
        my ($up) = $to =~ m{^(.*?)/+[^/]+/*$};
        my ($was) = $from =~ m{^(.*?)/+[^/]+/*$};
        if (!$t) { make_path($up eq '' ? '/' : $up, 0755) or fail($!) if defined $up }
        rename $from, $to and return;
        my $e = $! + 0;
        fail($e == 18 && grep({ defined $_ && !may_write($_ eq '' ? '/' : $_) } $was, $up) ? 13 : $e); # what is not permitted is that first
    },
    begin => sub {
        my ($hex, $cond, $no_links) = @_;
        my ($dir, $name, $s) = target(place($hex), $no_links);
        fail(10002) unless holds($cond, $s);
        my $t = nearest($dir) . '/' . random_name();
        sysopen my $f, $t, 0301, 0600 or fail($!); # O_WRONLY | O_CREAT | O_EXCL
        say_all($t, "\0");
    },
    commit => sub {
        my ($t, $hex, $append, $mode, $cond, $mtime, $no_links) = @_;
        $temp = pack 'H*', $t;
        my ($dir, $name, $s) = target(place($hex), $no_links);
        make_path($dir, 0755) or fail($!);
        my $held = alone($dir);
        ($dir, $name, $s) = target("$dir/$name", $no_links);
        fail(10002) unless holds($cond, $s);
        my $p = "$dir/$name";
        if ($append && $s) {
            open my $in, '<:raw', $temp or fail($!);
            sysopen my $out, $p, 02001 or fail($!); # O_WRONLY | O_APPEND
            my $size = -s $out;
            while (1) {
                my $n = sysread $in, my $bytes, 65536;
                if (!defined $n) { my $e = $! + 0; truncate $out, $size; fail($e) }
                last unless $n;
                for (my $at = 0; $at < $n;) {
                    my $w = syswrite $out, $bytes, $n - $at, $at;
                    if (!$w) { my $e = $! + 0; truncate $out, $size; fail($e) }
                    $at += $w;
                }
            }
            chmod oct $mode, $p or fail($!) if $mode ne '-';
            set_time($p, $mtime, 0);
            unlink $temp;
        } else {
            chmod $mode ne '-' ? oct $mode : $s && $s->{type} eq 'f' ? $s->{mode} & 0777 : 0644, $temp or fail($!);
            set_time($temp, $mtime, 0);
            if ($cond =~ /^2/) { link $temp, $p or fail($! == 17 ? 10002 : $!); unlink $temp }
            else { rename $temp, $p or fail($!) }
        }
        undef $temp;
        my $now = look($p, 0) or fail($!);
        say_all(($s ? 0 : 1) . "\0", record('', $now));
    },
    resolve => sub {
        my $p = place(shift);
        my $s = look($p, 1) or fail($!);
        sysopen my $f, $p, 010000000 or fail($!); # O_PATH
        my $real = readlink '/proc/self/fd/' . fileno $f;
        fail(10001) if !defined $real || $real =~ m{^/(proc|sys)(/|$)} || $s->{type} ne 'd' && $s->{type} ne 'f';
        say_all($real, "\0", record('', $s));
    },
    may => sub { may_write(nearest(place(shift))) or fail($!) },
    room => sub {
        my $t = nearest(place(shift)) . '/' . random_name();
        sysopen my $f, $t, 0301, 0600 or fail($!);
        say_all($t, "\0");
    },
    drop => sub { unlink pack 'H*', shift },
    open => sub {
        my $p = place(shift);
        my $s = look($p, 1) or fail($!);
        fail(21) if $s->{type} eq 'd';
        fail(10001) if $s->{type} ne 'f';
        sysopen my $f, $p, 04000 or fail($!); # O_NONBLOCK
        my $real = readlink '/proc/self/fd/' . fileno $f;
        fail(10001) if !defined $real || $real =~ m{^/(proc|sys)/};
        say_all($real, "\0", record('', $s));
    },
);
my $op = shift;
$do{$op}->(@ARGV);
